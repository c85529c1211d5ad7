"""Data sets that ``save_to_disk`` of Hugging Face's ``datasets`` wrote (``data.file``):
one, or a folder of them, one for each client, as Flower Datasets saves its partitions.

A folder with ``state.json`` is a data set, one with ``dataset_dict.json`` several parts
of one, of which ``train`` and ``test`` are read. Any other folder holds a folder for each
client; their order is that of their names, numbers in them counted: ``partition_10``
comes after ``partition_9``. The keys ``features``, ``label``, ``client`` and ``split``
name the columns. Needs pyarrow: ``pip install ".[parquet]"`` in the folder of hpcfl
(heterogeneity.md D11).
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

import numpy as np
from typing_extensions import TypedDict

from hpcfl.data.checks import refuse_repeated
from hpcfl.data.datasets import Owners
from hpcfl.data.sources import _arrow, _images, _names, _table
from hpcfl.data.sources._columns import Columns
from hpcfl.data.sources._schemas import refuse_missing_shards
from hpcfl.errors import UserError
from hpcfl.files import atomic, untrusted_files, user_files, wording
from hpcfl.files.atomic import Damaged

STATE, PARTS = "state.json", "dataset_dict.json"
MOST_CLIENTS = 100_000
JSON_BYTES = 1 << 26


class _File(TypedDict):
    filename: str


class _State(TypedDict):
    _data_files: list[_File]
    _indices_data_files: NotRequired[list[_File] | None]


class _Splits(TypedDict):
    splits: list[str]


class _Saved(NamedTuple):
    """A file of Arrow's, the part that it belongs to, if any, and its client."""

    piece: _arrow.Piece
    part: str | None
    client: int


class _SavedColumns(_arrow.ArrowColumns):
    def __init__(self, root: Path, files: list[_Saved], clients: list[str]) -> None:
        super().__init__(root, [file.piece for file in files])
        lengths = [file.piece.rows for file in files]
        parts = [file.part for file in files]
        if None not in parts:
            self.split = np.repeat(np.array(parts, object), lengths)
        elif set(parts) != {None}:
            whole = files[parts.index(None)].piece.path.parent
            raise UserError(
                f"{whole}: has no train and test, other folders have; all must be alike"
            )
        if clients:
            of = np.repeat([file.client for file in files], lengths)
            self.clients = Owners(tuple(clients), of)


class HuggingFace(_table.TableSource):
    @property
    def looked_for(self) -> list[str]:
        return [
            "state.json and its *.arrow",
            "or dataset_dict.json and train/, test/ with these",
            "or CLIENT/ with either",
        ]

    def opened(self, root: Path) -> Columns:
        if _is_saved(root):
            table = _SavedColumns(root, _saved(root, 0), [])
            table.notes = _describe_other_parts(root, [root])
            return table
        folders = _folders(root)
        files = []
        for client, folder in enumerate(folders):
            files += _saved(folder, client)
        table = _SavedColumns(root, files, [folder.name for folder in folders])
        table.notes = _describe_other_parts(root, folders)
        if _table.CLIENT in table.names:
            table.notes += (
                f"{root}: the column '{_table.CLIENT}' says whose each sample is, not the folders",
            )
        return table


def _folders(root: Path) -> list[Path]:
    """Return the folder of each client, in the order of names. Raises UserError."""
    try:
        entries = sorted(root.iterdir())
    except OSError as error:
        raise UserError(
            f"{root}: cannot be read as a folder ({atomic.reason(error)})"
        ) from None
    folders = [path for path in entries if _is_saved(path)]
    if not 0 < len(folders) <= MOST_CLIENTS:
        raise UserError(
            f"{root}: has neither {STATE} nor {PARTS}, so it must hold a folder with one "
            f"for each client, at most {MOST_CLIENTS:,}; it holds {len(folders):,}"
        )
    for path in entries:
        if path.is_dir() and path not in folders and not path.name.startswith("."):
            raise UserError(
                f"{path}: has neither {STATE} nor {PARTS}, other folders beside it have; save "
                "the data of this client again, or move the folder away"
            )
    return sorted(folders, key=lambda path: _counted(path.name))


def _is_saved(folder: Path) -> bool:
    return (folder / STATE).is_file() or (folder / PARTS).is_file()


def _counted(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them."""
    pieces = re.findall(r"(\d+)|(\D+)", name, re.ASCII)
    return [(int(digits[:18] or -1), letters) for digits, letters in pieces]


def _saved(folder: Path, client: int) -> list[_Saved]:
    """Open the files of a data set, or of its parts for training and testing. Raises
    UserError.
    """
    if (folder / STATE).is_file():
        return [_Saved(piece, None, client) for piece in _pieces(folder)]
    splits = _json(folder / PARTS, _Splits)["splits"]
    files = []
    for part in (_names.TRAIN, _names.TEST):
        if part in splits:
            files += [_Saved(piece, part, client) for piece in _pieces(folder / part)]
    if not files:
        raise UserError(f"{folder}: has neither 'train' nor 'test' among its parts")
    return files


def _describe_other_parts(root: Path, folders: list[Path]) -> tuple[str, ...]:
    """Return a note on parts that are neither for training nor for testing."""
    others: set[str] = set()
    for folder in folders:
        if not (folder / STATE).is_file():
            others |= set(_json(folder / PARTS, _Splits)["splits"])
    others -= {_names.TRAIN, _names.TEST}
    if not others:
        return ()
    names = wording.list_names(sorted(others))
    return (f"{root}: only 'train' and 'test' are read, not {names}",)


def _pieces(folder: Path) -> list[_arrow.Piece]:
    """Open the tables of one data set. Raises UserError."""
    state = _json(folder / STATE, _State)
    if state.get("_indices_data_files"):
        raise UserError(
            f"{folder}: its rows are chosen by a file of indices; save it again after "
            "flatten_indices()"
        )
    names = [file["filename"] for file in state["_data_files"]]
    if not names:
        raise UserError(f"{folder / STATE}: names no file")
    refuse_repeated(folder / STATE, "file", names)
    refuse_missing_shards(folder, names)
    return [_piece(folder, name) for name in names]


def _piece(folder: Path, name: str) -> _arrow.Piece:
    """Open a table as a piece of a data set. Raises UserError."""
    if not re.fullmatch(_images.NAME, name):
        raise UserError(f"{folder / STATE}: {name!r:.60} is no name of a file")
    table = _table_in(folder / name)

    def read(column: str) -> list[Any]:
        chunks: list[Any] = table[column].chunks
        return chunks

    return _arrow.Piece(folder / name, table.schema, len(table), read)


def _table_in(path: Path) -> Any:
    """Read the table in a stream of Arrow's. Raises UserError."""
    arrow = _arrow.pyarrow()
    try:
        with user_files.opened(path) as file:
            return arrow.ipc.open_stream(file).read_all()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # pyarrow raises many kinds
        raise UserError(
            f"{path}: cannot be read as a stream of Arrow's ({atomic.reason(error)})"
        ) from None


def _json(path: Path, form: type[Any]) -> Any:
    """Read a JSON file of this form. Raises UserError."""
    try:
        return untrusted_files.checked(
            untrusted_files.parsed(user_files.read_bytes(path, JSON_BYTES)), form
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, Damaged) as error:
        raise UserError(
            f"{path}: cannot be read as Hugging Face's ({atomic.reason(error)})"
        ) from None


plugin = HuggingFace()
