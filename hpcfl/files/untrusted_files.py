"""Safe reading of files, with bounded memory.

Pipes and devices are refused, because they can block a reader forever. Files in results
folders and caches may have been written by another user. Links are not followed there,
because they can lead to any file of this user, and unexpected content raises Damaged.
Functions with ``user`` in their names read files that this user names, and follow
links. ``find_nonfinite`` finds values that no model can use.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import numpy as np
import pydantic
from pydantic import JsonValue, TypeAdapter

from hpcfl.errors import UserError
from hpcfl.files import heartbeat
from hpcfl.files.atomic import Damaged, describe_reason

Form = TypeVar("Form")
CHUNK = 8 << 20  # bytes hashed at a time
JSON_LIMIT = 1 << 20  # default limit in bytes for JSON; a run.json has some thousand
USERS_JSON_LIMIT = 1 << 26  # limit in bytes for a JSON file that this user names
_ANY_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)
DIGITS = 19  # largest number of digits of an integer in JSON, about 64 bits
KEY_LETTERS = 80  # largest number of characters of a key in an error


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises FileNotFoundError, or Damaged for a link or another kind of file.
    """
    return open(open_descriptor(path), "rb")


def open_descriptor(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file as ``opened`` does; return its descriptor, which the caller closes.

    Args:
        path: the file.
        flags: flags of ``os.open``; with ``os.O_RDWR | os.O_CREAT`` a missing file is
            created, and an existing file is not changed.
    """
    try:
        return _open_regular(path, flags | os.O_NOFOLLOW)
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(
            "it is a link, which is not followed"
            if os.path.islink(path)
            else describe_reason(error)
        ) from None


def _open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; return its descriptor, which the caller closes.

    Args:
        path: the file.
        flags: flags of ``os.open``; links are followed unless the flags forbid it.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    if "\0" in str(path):
        raise OSError("its name contains a NUL character")
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a regular file")
    return file


def read_bytes(path: Path, limit: int, again: bool = True) -> bytes:
    """Return the content of a file.

    It is read at once, because the file may be replaced at any moment.

    Args:
        path: the file.
        limit: largest size in bytes.
        again: whether to read once more if another host of NFS has replaced the file
            after it was opened.

    Raises:
        FileNotFoundError: The file is missing.
        Damaged: The file is too large, a link or unreadable.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise Damaged(f"{size:,} bytes, more than the limit of {limit:,}")
        try:
            return file.read()
        except (OSError, MemoryError) as error:
            if again and getattr(error, "errno", None) == errno.ESTALE:
                return read_bytes(path, limit, again=False)
            raise Damaged(describe_reason(error)) from None


def open_user_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, following links. Raises OSError."""
    return open(_open_regular(path), "rb")


def read_user_file(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes. Raises OSError."""
    with open_user_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"longer than {limit:,} bytes")
    return content


@contextmanager
def refuse_unreadable(
    path: object, kind: str = "", missing: str = ""
) -> Iterator[None]:
    """Convert any error in the block to a UserError with the path.

    Readers of damaged files raise errors of all types.

    Args:
        path: file or other source, for the message.
        kind: expected format.
        missing: advice for a missing file.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        advice = f"; {missing}" if missing else ""
        raise UserError(f"{path}: no such file{advice}") from None
    except Exception as error:
        read = f"read as {kind}" if kind else "read"
        raise UserError(
            f"{path}: cannot be {read} ({describe_reason(error)})"
        ) from None
    heartbeat.beat()


def read_user_json(path: Path, form: type[Form], kind: str = "JSON") -> Form:
    """Return the content of a JSON file.

    Args:
        path: the file; links are followed.
        form: type of the content, as in ``read_json``.
        kind: expected format, for errors.

    Raises:
        UserError: The file cannot be read or has another type.
    """
    with refuse_unreadable(path, kind):
        return checked(parsed(read_user_file(path, USERS_JSON_LIMIT)), form)


def compute_sha256(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of an open file, hexadecimal. Raises Damaged."""
    digest = hashlib.sha256()
    try:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            heartbeat.beat()
    except OSError as error:
        raise Damaged(describe_reason(error)) from None
    return digest.hexdigest()


def read_json(path: Path, form: type[Form], limit: int = JSON_LIMIT) -> Form:
    """Return the content of a JSON file.

    Args:
        path: the file.
        form: type of the content, any type that pydantic supports; nothing is
            converted.
        limit: largest size in bytes.

    Raises:
        FileNotFoundError: The file is missing.
        Damaged: The file is damaged or has another type.
    """
    return checked(parsed(read_bytes(path, limit)), form)


def parsed(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    NaN, infinities, integers of more than DIGITS characters, deep nesting and repeated
    keys in an object raise Damaged.
    """
    try:
        value = json.loads(
            text,
            parse_int=_parse_integer,
            parse_constant=_refuse,
            object_pairs_hook=refuse_repeats,
        )
    except RecursionError:
        raise Damaged("nested too deeply") from None
    except ValueError as error:
        raise Damaged(f"not JSON, {describe_reason(error)}") from None
    return _validated(value, _ANY_JSON)


def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary. Raises ValueError for a repeated key."""
    table = dict(pairs)
    if len(table) < len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{key[:KEY_LETTERS]!r} occurs twice")
            seen.add(key)
    return table


def checked(value: Any, form: type[Form]) -> Form:
    """Return ``value`` if it has the type ``form``. Raises Damaged."""
    adapter: TypeAdapter[Form] = _adapter(form)
    return _validated(value, adapter)


def _validated(value: Any, adapter: TypeAdapter[Form]) -> Form:
    try:
        return adapter.validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        raise Damaged(_explain(error)) from None


def _new_adapter(form: type[Form]) -> TypeAdapter[Form]:
    return TypeAdapter(form)


# cached, because creating an adapter takes longer than using it
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(_new_adapter)


def _explain(error: pydantic.ValidationError) -> str:
    """Return the first mistake as a short text."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "recursion_loop":
        return "nested too deeply"
    place, value = ".".join(map(str, first["loc"])), first["input"]
    if not place:
        return first["msg"]
    found = "" if isinstance(value, list | dict) else f", not {value!r:.{KEY_LETTERS}}"
    return f"{place[:KEY_LETTERS]!r}: {first['msg']}{found}"


def _parse_integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def describe_nonfinite(array: np.ndarray) -> str:
    """Return position and value of the first NaN or infinity, such as ``[3, 0] is
    nan``; "" without such values.
    """
    place = find_nonfinite(array)
    return "" if place is None else f"{list(place)} is {array[place]}"


def find_nonfinite(array: np.ndarray) -> tuple[int, ...] | None:
    """Return the position of the first NaN or infinity, None without such values.

    Values beyond float32, in which models compute, count as infinite.
    """
    if not array.size or array.dtype.kind != "f":
        return None
    largest = np.finfo(np.float32).max
    if -largest <= array.min() and array.max() <= largest:
        return None
    is_usable = np.abs(array) <= largest
    first = np.unravel_index(np.argmin(is_usable), array.shape)
    return tuple(int(index) for index in first)
