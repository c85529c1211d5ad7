"""Columns of Arrow's tables as arrays: numbers, texts, lists of numbers, and images as
Hugging Face stores them.
"""

import io
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.sources import _images
from hpcfl.data.sources._table import MOST_ROWS, Columns
from hpcfl.errors import UserError
from hpcfl.files import atomic, foreign, heartbeat
from hpcfl.files.atomic import Damaged

HUGGING_FACE = b"huggingface"  # the schema's metadata with the kinds of columns, JSON


def pyarrow() -> Any:
    """The library, which is an extra. Raises UserError where it is missing."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            'this data set is read by pyarrow, which is missing: pip install ".[parquet]" '
            "in the folder of hpcfl"
        ) from None
    return pyarrow


class ArrowColumns(Columns):
    """A table in several pieces, one after the other, which all have one schema."""

    def __init__(self, root: Path, schemas: Sequence[Any], rows: int) -> None:
        self.root = root
        self.schema = schemas[0]
        for schema in schemas[1:]:
            if not schema.equals(self.schema):
                raise UserError(
                    f"{root}: all files must have the same columns; one has "
                    f"{', '.join(schema.names)}, another {', '.join(self.schema.names)}, or "
                    "they are of other types"
                )
        if not 0 < rows <= MOST_ROWS:
            raise UserError(f"{root}: {rows:,} rows; it must have 1 to {MOST_ROWS:,}")
        self.names = list(self.schema.names)

    @abstractmethod
    def chunks(self, name: str) -> list[Any]:
        """The pieces of a column, Arrow's arrays."""

    def column(self, name: str) -> np.ndarray:
        parts: list[np.ndarray] = []
        row = 1
        for chunk in self.chunks(name):
            if len(chunk):
                parts.append(_values(f"{self.root}: column '{name}'", chunk, row))
            row += len(chunk)
            heartbeat.beat()
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            raise UserError(
                f"{self.root}: column '{name}': all rows must have one shape; it has "
                f"{' and '.join(map(str, sorted(shapes)[:2]))}"
            )
        return np.concatenate(parts)

    def class_names(self, name: str) -> list[str] | None:
        metadata = (self.schema.metadata or {}).get(HUGGING_FACE)
        if metadata is None:
            return None
        try:
            described = foreign.parsed(metadata)["info"]["features"].get(name) or {}
            if "names" not in described:
                return None
            return foreign.checked(described["names"], list[str])
        except (Damaged, AttributeError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.root}: its description of the columns cannot be read "
                f"({atomic.reason(error)})"
            ) from None


def _values(where: str, array: Any, row: int) -> np.ndarray:
    """The values of a piece of a column, the first of which is in row ``row``.

    Raises UserError.
    """
    types = pyarrow().types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        missing = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserError(f"{where}: row {row + missing} has no value")
    kind = array.type
    if types.is_struct(kind) and "bytes" in [field.name for field in kind]:
        return _pictures(where, array, row)
    if types.is_string(kind) or types.is_large_string(kind):
        texts = np.empty(len(array), object)
        texts[:] = array.to_pylist()
        return texts
    if _is_list(types, kind):
        return _lists(where, array)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        numbers: np.ndarray = array.to_numpy(zero_copy_only=False)
        return numbers
    raise UserError(
        f"{where}: {kind} is not read; numbers, texts, lists of numbers and images are"
    )


def _is_list(types: Any, kind: Any) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def _lists(where: str, array: Any) -> np.ndarray:
    """Lists of as many numbers each, perhaps nested, [rows, …]. Raises UserError."""
    arrow = pyarrow()
    types = arrow.types
    shape = [len(array)]
    while _is_list(types, array.type):
        inner = array.flatten()
        sizes = arrow.compute.list_value_length(array).unique().to_pylist()
        if len(sizes) != 1 or not sizes[0]:
            raise UserError(f"{where}: lists must have as many numbers each")
        shape.append(sizes[0])
        array = inner
    if array.null_count or not (
        types.is_integer(array.type) or types.is_floating(array.type)
    ):
        raise UserError(f"{where}: lists must hold numbers, all of them; {array.type}")
    numbers: np.ndarray = array.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def _pictures(where: str, array: Any, row: int) -> np.ndarray:
    """Images that lie in the table itself, uint8 [rows, channels, height, width].

    The files that their paths name are not opened. Raises UserError.
    """
    images: list[np.ndarray] = []
    for number, content in enumerate(array.field("bytes").to_pylist(), start=row):
        place = f"{where}: row {number}"
        if content is None:
            raise UserError(f"{place} has no bytes of an image; a path is not opened")
        image = _images.decoded(io.BytesIO(content), place, "PNG", "JPEG", mode=None)
        if images and image.shape != images[0].shape:
            raise UserError(
                f"{place} is {_size(image)}, row {row} {_size(images[0])}; all must be alike"
            )
        images.append(image)
    return np.stack(images)


def _size(image: np.ndarray) -> str:
    return "×".join(map(str, image.shape))
