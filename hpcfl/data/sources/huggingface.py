"""What ``save_to_disk`` of Hugging Face's ``datasets`` wrote (``data.file``): a data set,
or a folder of them, one for each client, as Flower Datasets saves its partitions.

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

from hpcfl.data.owners import Owners
from hpcfl.data.sources import _arrow, _images, _table
from hpcfl.errors import UserError
from hpcfl.files import atomic, foreign, regular
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


class _Piece(NamedTuple):
    """A file of Arrow's: its table, the part that it belongs to, if any, and whose it
    is.
    """

    table: Any
    part: str | None
    client: int


class _SavedColumns(_arrow.ArrowColumns):
    def __init__(self, root: Path, pieces: list[_Piece], clients: list[str]) -> None:
        self._tables = [piece.table for piece in pieces]
        lengths = [len(table) for table in self._tables]
        super().__init__(root, [table.schema for table in self._tables], sum(lengths))
        parts = [piece.part for piece in pieces]
        if None not in parts:
            self.split = np.repeat(np.array(parts, object), lengths)
        if clients:
            of = np.repeat([piece.client for piece in pieces], lengths)
            self.clients = Owners(tuple(clients), of)

    def chunks(self, name: str) -> list[Any]:
        found = []
        for table in self._tables:
            found += table[name].chunks
        return found


class HuggingFace(_table.TableSource):
    @property
    def looked_for(self) -> list[str]:
        return [
            "state.json and its *.arrow",
            "or dataset_dict.json and train/, test/ with these",
            "or CLIENT/ with either",
        ]

    def opened(self, root: Path) -> _table.Columns:
        if _is_saved(root):
            return _SavedColumns(root, _pieces(root, 0), [])
        try:
            folders = [path for path in root.iterdir() if _is_saved(path)]
        except OSError as error:
            raise UserError(
                f"{root}: cannot be read as a folder ({atomic.reason(error)})"
            ) from None
        if not 0 < len(folders) <= MOST_CLIENTS:
            raise UserError(
                f"{root}: has neither {STATE} nor {PARTS}, so it must hold a folder with one "
                f"for each client, at most {MOST_CLIENTS:,}; it holds {len(folders):,}"
            )
        folders.sort(key=lambda path: _counted(path.name))
        pieces = []
        for client, folder in enumerate(folders):
            pieces += _pieces(folder, client)
        return _SavedColumns(root, pieces, [folder.name for folder in folders])


def _is_saved(folder: Path) -> bool:
    return (folder / STATE).is_file() or (folder / PARTS).is_file()


def _counted(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by the numbers in them."""
    pieces = re.findall(r"(\d+)|(\D+)", name, re.ASCII)
    return [(int(digits[:18] or -1), letters) for digits, letters in pieces]


def _pieces(folder: Path, client: int) -> list[_Piece]:
    """The files of a data set, or of its parts for training and testing. Raises
    UserError.
    """
    if (folder / STATE).is_file():
        return [_Piece(table, None, client) for table in _tables(folder)]
    splits = _json(folder / PARTS, _Splits)["splits"]
    pieces = []
    for part in (_table.TRAIN, _table.TEST):
        if part in splits:
            pieces += [_Piece(table, part, client) for table in _tables(folder / part)]
    if not pieces:
        raise UserError(f"{folder}: has neither 'train' nor 'test' among its parts")
    return pieces


def _tables(folder: Path) -> list[Any]:
    """Arrow's tables of one data set. Raises UserError."""
    state = _json(folder / STATE, _State)
    if state.get("_indices_data_files"):
        raise UserError(
            f"{folder}: its rows are chosen by a file of indices; save it again after "
            "flatten_indices()"
        )
    tables = []
    for file in state["_data_files"]:
        name = file["filename"]
        if not re.fullmatch(_images.NAME, name):
            raise UserError(f"{folder / STATE}: {name!r:.60} is no name of a file")
        tables.append(_table_in(folder / name))
    if not tables:
        raise UserError(f"{folder / STATE}: names no file")
    return tables


def _table_in(path: Path) -> Any:
    """The table in a stream of Arrow's. Raises UserError."""
    arrow = _arrow.pyarrow()
    try:
        with regular.opened(path) as file:
            return arrow.ipc.open_stream(file).read_all()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # pyarrow raises many kinds
        raise UserError(
            f"{path}: cannot be read as a stream of Arrow's ({atomic.reason(error)})"
        ) from None


def _json(path: Path, form: type[Any]) -> Any:
    """The content of a JSON file, of this form. Raises UserError."""
    try:
        return foreign.checked(
            foreign.parsed(regular.read_bytes(path, JSON_BYTES)), form
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, Damaged) as error:
        raise UserError(
            f"{path}: cannot be read as Hugging Face's ({atomic.reason(error)})"
        ) from None


plugin = HuggingFace()
