"""The manifest of a checkpoint, which commits it, and the data files that it lists.

Data files are HDF5: one for each group of clients, one for the server, and one for each
part of a large tensor of the server (``server_state.py``). A file is named by the
SHA-256 of its bytes. Files with one name are therefore identical on any number of
ranks, and no file of an older checkpoint is overwritten.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.files import atomic, hdf5, scratch, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage.forms import Meta, check_run

if TYPE_CHECKING:
    from torch import Tensor

    from hpcfl.experiment.config import Config
    from hpcfl.storage.clients import Row, Snapshot

FORMAT = 3
READABLE = (2, FORMAT)  # in format 2 the server's state is one file
PATTERN = "manifest-*.json"
LIMIT = 256 << 20  # bytes, enough for 2,800,000 clients with state
# A file is written again when one of its clients changes. Larger files are fewer, but
# more state is rewritten.
FILE_CLIENTS = 64
FILE_BYTES = 64 << 20
FILES = 400  # limit for a checkpoint; howto/storage.md explains it

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

# types of tensors that are stored in parts
PARTS_TYPES = r"^(bool|uint8|int8|int16|int32|int64|float16|float32|float64)$"


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Part:
    """Rows of a tensor of the server, along its first dimension.

    Attributes:
        tensor: name of the tensor.
        begin: first row.
        end: row after the last.
        row: shape of a row.
        dtype: type of the tensor.

    Raises:
        ValueError: A value is invalid.
    """

    tensor: str
    begin: NonNegativeInt
    end: NonNegativeInt
    row: list[PositiveInt]
    dtype: Annotated[str, Field(pattern=PARTS_TYPES)]

    def __post_init__(self) -> None:
        if self.begin >= self.end:
            raise ValueError(f"a part of {self.tensor!r} has no rows")

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @property
    def size(self) -> int:
        """Return the size of the rows in bytes."""
        return self.rows * prod(self.row) * np.dtype(self.dtype).itemsize

    def is_continuation_of(self, before: "Part | None") -> bool:
        """Return whether this part follows another part of the same tensor; None for
        the first part.
        """
        if before is None:
            return self.begin == 0
        alike = self.row == before.row and self.dtype == before.dtype
        return alike and self.begin == before.end


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Shard:
    """A data file with the state of the server or of some clients.

    Attributes:
        name: name of the file.
        sha256: SHA-256 of its bytes.
        size: size in bytes.
        ids: ids of the clients, ascending; None for the server.
        digests: digest of the server's state, or of each client's state; empty for a
            part.
        part: rows in the file, if it holds a part of one tensor of the server.

    Raises:
        ValueError: A value is invalid.
    """

    name: str
    sha256: Sha256
    size: NonNegativeInt
    ids: list[NonNegativeInt] | None
    digests: list[Sha256]
    part: Part | None = None

    def __post_init__(self) -> None:
        ids = self.ids
        if self.part is not None:
            if ids is not None or self.part.size > self.size:
                raise ValueError(f"{self.name}: its part does not fit the file")
            ids = []
        elif ids is None:
            ids = [0]
        if self.name != _name_file(self.ids, self.sha256):
            raise ValueError(f"{self.name!r} does not match its SHA-256 or its ids")
        if ids != sorted(set(ids)) or len(ids) != len(self.digests):
            raise ValueError(f"{self.name}: its ids and digests do not match")

    @property
    def is_of_server(self) -> bool:
        """Return whether the file holds the server's state without its parts."""
        return self.ids is None and self.part is None

    @property
    def content(self) -> tuple[object, ...]:
        """Return a key of the state in the file; shards with equal keys are
        interchangeable.
        """
        if self.part is not None:
            return (self.name,)
        return make_content_key(self.ids, self.digests)

    def is_present(self, folder: Path) -> bool:
        """Return whether the file exists with this size; its content is not checked."""
        try:
            return (folder / self.name).lstat().st_size == self.size
        except OSError:
            return False

    def verify(self, folder: Path) -> None:
        """Read the file. Raises Damaged if its SHA-256 differs."""
        try:
            with untrusted_files.opened(folder / self.name) as file:
                right = (
                    os.fstat(file.fileno()).st_size == self.size
                    and untrusted_files.compute_sha256(file) == self.sha256
                )
        except (FileNotFoundError, Damaged) as error:
            raise Damaged(f"{self.name}: {atomic.describe_reason(error)}") from error
        if not right:
            raise Damaged(f"{self.name}: its SHA-256 differs from that in the manifest")


class Document(TypedDict):
    """Content of a manifest's file; ``sha256`` is the checksum of ``manifest``."""

    sha256: str
    manifest: dict[str, Any]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Manifest:
    """A committed checkpoint: the state after a round.

    Attributes:
        round: number of the round.
        digest: digest of the run's whole state.
        meta: argument ``meta`` of ``Checkpoints.start``, with the run's fingerprint
            under ``run``.
        files: one file of the server, parts of its large tensors, in the order of rows,
            and any number of files of clients.
        best: stored state before the best round so far, or None.

    Raises:
        ValueError: A value is invalid.
    """

    round: Annotated[int, Field(ge=0, lt=10**8)]
    digest: Sha256
    meta: dict[str, Any]
    files: list[Shard]
    best: "Manifest | None" = None

    def __post_init__(self) -> None:
        clients = [client for shard in self.files for client in shard.ids or ()]
        servers = sum(shard.is_of_server for shard in self.files)
        if len(clients) != len(set(clients)) or servers != 1:
            raise ValueError(
                "the files must hold one server's state, and each client at most once"
            )
        if self.best is not None and "number" not in self.best.meta:
            raise ValueError("the best state has no metric")
        for tensor, files in self.parts.items():
            before = None
            for _, part in files:
                if not part.is_continuation_of(before):
                    raise ValueError(f"the parts of {tensor!r} do not fit together")
                before = part

    @property
    def name(self) -> str:
        return name_manifest(self.round)

    @property
    def server_file(self) -> Shard:
        """Return the file of the server that is not a part."""
        return next(shard for shard in self.files if shard.is_of_server)

    @property
    def parts(self) -> dict[str, list[tuple[str, Part]]]:
        """Return file name and part of each part, by tensor."""
        found: dict[str, list[tuple[str, Part]]] = {}
        for shard in self.files:
            if shard.part is not None:
                found.setdefault(shard.part.tensor, []).append((shard.name, shard.part))
        return found

    @property
    def all_files(self) -> list[Shard]:
        """Return the files of the state and of the best state."""
        return [*self.files, *(self.best.all_files if self.best else [])]

    @property
    def only_of_best(self) -> list[Shard]:
        """Return the files of the best state that the state does not use."""
        own = {shard.name for shard in self.files}
        return [shard for shard in self.all_files if shard.name not in own]

    def write(self, folder: Path) -> None:
        """Commit the checkpoint: publish the manifest in ``folder``. Raises RunFailure."""
        body = {"format": FORMAT, **asdict(self)}
        if self.best is None:
            del body["best"]
        document = {"sha256": compute_checksum(body), "manifest": body}
        atomic.write(folder / self.name, json.dumps(document, indent=1).encode())

    def verify(self, folder: Path) -> None:
        """Read the files of the state in ``folder``.

        Raises Damaged for a missing or changed file.
        """
        for shard in self.files:
            shard.verify(folder)


def name_manifest(round: int) -> str:
    """Return the file name of the manifest after a round; names sort by round."""
    return f"manifest-{round:08d}.json"


def read(path: Path, run: str | None = None) -> Manifest:
    """Return the manifest in a file, after checking its checksum.

    ``Manifest.verify`` checks the files that it lists.

    Args:
        path: the file.
        run: fingerprint of the run, as in ``forms.check_run``.

    Raises:
        Damaged: The manifest is damaged or belongs to another run.
    """
    try:
        document = untrusted_files.read_json(path, Document, LIMIT)
        body = document["manifest"]
        if document["sha256"] != compute_checksum(body):
            raise Damaged("its content does not match its checksum")
        if body.pop("format", None) not in READABLE:
            raise Damaged("written in another format by another version of hpcfl")
        manifest = parse_manifest(body)
    except FileNotFoundError as error:
        raise Damaged(atomic.describe_reason(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged("not a complete manifest") from error
    if manifest.name != path.name:
        raise Damaged(f"it belongs to round {manifest.round}")
    check_run(manifest.meta.get("run"), run)
    return manifest


def parse_manifest(table: dict[str, Any]) -> Manifest:
    """Return the manifest of a table from ``asdict``.

    Raises Damaged, ValueError, KeyError, TypeError or AttributeError for other tables.
    """
    untrusted_files.checked(table["meta"], Meta)
    best = table.get("best")
    return Manifest(
        **{
            **table,
            "files": [parse_shard(shard) for shard in table["files"]],
            "best": None if best is None else parse_manifest(best),
        }
    )


def parse_shard(table: dict[str, Any]) -> Shard:
    """Return the file of a table from ``asdict``. Raises as ``parse_manifest``."""
    part = table.get("part")
    return Shard(**{**table, "part": None if part is None else Part(**part)})


def list_newest_first(folder: Path) -> list[Path]:
    """Return the paths of a folder's manifests, including damaged ones, newest first.

    The result is empty for a missing folder. Raises RunFailure.
    """
    return atomic.list_paths(folder, PATTERN)[::-1]


def find_states(folder: Path, run: str) -> dict[int, Manifest]:
    """Return a run's stored states, including best ones, by the last round before them.

    All their files exist; the content is not checked.

    Args:
        folder: folder of the checkpoints.
        run: fingerprint of the run.
    """
    found: dict[int, Manifest] = {}
    for newest in read_all(list_newest_first(folder), run):
        for one in (newest, newest.best):
            if one is not None and all(shard.is_present(folder) for shard in one.files):
                found.setdefault(one.round, one)
    return found


def find_damage(folder: Path, files: Iterable[Shard]) -> str | None:
    """Return the first damage of files in a folder, or None if all are intact."""
    for shard in files:
        try:
            shard.verify(folder)
        except Damaged as error:
            return str(error)
    return None


def list_damaged(folder: Path, run: str) -> dict[str, str]:
    """Return the damage of each unreadable checkpoint by its manifest's name, newest
    first.

    All files are read.

    Args:
        folder: folder of the checkpoints.
        run: fingerprint of the run.
    """
    found: dict[str, str] = {}
    for path in list_newest_first(folder):
        try:
            read(path, run).verify(folder)
        except Damaged as error:
            found[path.name] = f"{path}: damaged and ignored ({error})"
    return found


def find_latest(
    folder: str | Path, run: str | None = None, verified: bool = False
) -> Manifest | None:
    """Return the newest checkpoint with an intact manifest and existing files, or None.

    Args:
        folder: folder of the checkpoints.
        run: fingerprint of the run, as in ``forms.check_run``.
        verified: Whether to check the content of all files.

    Raises:
        RunFailure: The folder cannot be listed.
    """
    folder = Path(folder)
    for found in read_all(list_newest_first(folder), run):
        with suppress(Damaged):
            if verified:
                found.verify(folder)
            if all(shard.is_present(folder) for shard in found.files):
                return found
    return None


def read_all(paths: Iterable[Path], run: str | None = None) -> list[Manifest]:
    """Return the intact manifests of a run in the order of ``paths``."""
    manifests = []
    for path in paths:
        with suppress(Damaged):
            manifests.append(read(path, run))
    return manifests


def compute_checksum(body: dict[str, Any]) -> str:
    """Return the SHA-256 of the body of a manifest.

    It is the same before writing and after reading.
    """
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def make_content_key(
    ids: Sequence[int] | None, digests: Sequence[str]
) -> tuple[object, ...]:
    """Return ``Shard.content`` for digests of clients, or of the server if ``ids`` is
    None.
    """
    return (None if ids is None else tuple(ids), *digests)


@dataclass(frozen=True)
class FileLimits:
    """Limits for the files of a checkpoint.

    Attributes:
        size: largest size in bytes of a file with several clients or rows. None for
            FILE_BYTES, or more if that would need more than FILES files.
        clients: number of clients on all ranks.
    """

    size: int | None = None
    clients: int = 1

    @property
    def small(self) -> int:
        """Return the largest size in bytes of a tensor of the server that is not
        divided.
        """
        return self.size or FILE_BYTES

    def count_clients(self, client_bytes: int) -> int:
        """Return the largest number of clients in a file.

        Args:
            client_bytes: size of a client's state in bytes.
        """
        fit = min(FILE_CLIENTS, self.small // max(1, client_bytes))
        return self._limit_files(fit, self.clients)

    def count_rows(self, rows: int, row_bytes: int) -> int:
        """Return the largest number of rows of a tensor in a file.

        Args:
            rows: number of rows of the tensor.
            row_bytes: size of a row in bytes.
        """
        return self._limit_files(self.small // max(1, row_bytes), rows)

    def _limit_files(self, fit: int, total: int) -> int:
        """Return ``fit``, or more if ``total`` items would need more than FILES files."""
        fewest = 1 if self.size else ceil(total / FILES)
        return max(fit, fewest)


AUTO = FileLimits()


def make_limits(config: "Config") -> FileLimits:
    """Return the limits of ``checkpoint.file_size``."""
    megabytes, clients = config.checkpoint.file_size, config.partition.clients
    return FileLimits(None if megabytes == "auto" else megabytes << 20, clients)


def group_clients(rows: "Snapshot", limits: FileLimits = AUTO) -> Iterator[list[int]]:
    """Yield the ids of a rank's clients, ascending, in groups of bounded size.

    Each group becomes one file. Clients without own state are left out. Groups are
    bounded by positions among all clients, so putting the state of one client does not
    change other groups. If few of many clients have own state, a group spans more
    clients, so that files do not hold single rows. The span halves when the number of
    clients with own state doubles; only then do all groups change.

    Args:
        rows: state of the rank's clients.
        limits: limits for files.
    """
    most = limits.count_clients(rows.template.size)
    written = np.array(sorted(rows.written), np.int64)
    clients_per_written = len(rows.ids) // max(1, len(written))
    span = most * _find_power_of_two(clients_per_written)
    of_group = np.searchsorted(rows.ids, written) // span
    begins = np.flatnonzero(np.diff(of_group)) + 1
    for group in np.split(written, begins):
        for begin in range(0, len(group), most):
            yield group[begin : begin + most].tolist()


def _find_power_of_two(number: int) -> int:
    """Return the largest power of two up to ``number``, at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def write_clients(folder: Path, ids: list[int], rows: "Mapping[int, Row]") -> Shard:
    """Write the state of n clients: datasets [n, *shape] by tensor, and ``ids`` [n].

    Args:
        folder: folder of the checkpoint.
        ids: ids of the clients.
        rows: state by client.

    Raises:
        RunFailure: The file cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    for position, client in enumerate(ids):
        # each row is fetched once, because it may be on a GPU or in a file
        for name, tensor in rows[client].tensors.items():
            row = tensor.numpy()
            if position == 0:
                flat = scratch.allocate(len(ids) * row.nbytes)
                stacked = flat.view(row.dtype).reshape(len(ids), *row.shape)
                arrays[_encode(name)] = stacked
            arrays[_encode(name)][position] = row
    arrays["ids"] = np.array(ids)
    return _write(folder, arrays, ids, [rows[client].digest for client in ids])


def write_server(folder: Path, state: "Mapping[str, Tensor]", digest: str) -> Shard:
    """Write the server's state.

    Args:
        folder: folder of the checkpoint.
        state: CPU tensors of any shape by name.
        digest: digest of the state.

    Raises:
        RunFailure: The file cannot be written.
    """
    arrays = {_encode(name): tensor.numpy() for name, tensor in state.items()}
    return _write(folder, arrays, None, [digest])


def encode_part(part: Part, rows: np.ndarray) -> tuple[Shard, memoryview]:
    """Return the file of a part of a large tensor, and its bytes.

    Args:
        part: the part.
        rows: its rows, [end − begin, *row].
    """
    return _encode_file({_encode(part.tensor): rows}, None, [], part)


def read_part(path: Path, part: Part, target: np.ndarray) -> None:
    """Read the rows of a part from its file.

    Call ``Shard.verify`` first.

    Args:
        path: the file.
        part: the part.
        target: array that receives the rows, [end − begin, *row].

    Raises:
        FileNotFoundError: The file is missing.
        Damaged: The file is damaged.
    """
    hdf5.read_into(path, _encode(part.tensor), target)


def read_tensors(path: Path, rows: list[int] | None) -> "dict[str, Tensor]":
    """Return the tensors in a file by name.

    Call ``Shard.verify`` first.

    Args:
        path: the file.
        rows: ascending numbers of the rows to read; None for all.

    Raises:
        Damaged: The file is damaged.
    """
    import torch

    arrays = hdf5.select(path, rows)
    return {
        _decode(name): torch.from_numpy(array)
        for name, array in arrays.items()
        if name != "ids"
    }


def _write(
    folder: Path,
    arrays: dict[str, np.ndarray],
    ids: list[int] | None,
    digests: list[str],
) -> Shard:
    shard, data = _encode_file(arrays, ids, digests)
    atomic.write(folder / shard.name, data)
    return shard


def _encode_file(
    arrays: dict[str, np.ndarray],
    ids: list[int] | None,
    digests: list[str],
    part: Part | None = None,
) -> tuple[Shard, memoryview]:
    """Return a data file and its bytes."""
    data = hdf5.encode(arrays, {})
    sha256 = hashlib.sha256(data).hexdigest()
    return Shard(
        name=_name_file(ids, sha256),
        sha256=sha256,
        size=len(data),
        ids=ids,
        digests=digests,
        part=part,
    ), data


def _name_file(ids: list[int] | None, sha256: str) -> str:
    """Return the name of a file of clients, or of the server if ``ids`` is None."""
    return f"{'server' if ids is None else 'clients'}-{sha256}.h5"


def _encode(name: str) -> str:
    """Return the name of a tensor's dataset, without characters that HDF5 reads as a
    path.

    The leading '=' distinguishes it from the dataset ``ids``.
    """
    return "=" + quote(name, safe=" ()[],").replace(".", "%2E")


def _decode(name: str) -> str:
    return unquote(name.removeprefix("="))
