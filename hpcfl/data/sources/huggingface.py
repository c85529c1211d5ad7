"""Data sets in the format of ``save_to_disk`` of Hugging Face's ``datasets``
(``data.file``): one data set, or a folder with one for each client, as Flower Datasets
saves partitions.

A folder with ``state.json`` is a data set. A folder with ``dataset_dict.json`` is a
data set in parts, of which ``train`` and ``test`` are read. Any other folder must
contain a folder for each client; clients are sorted by name, numbers by value:
``partition_10`` follows ``partition_9``. The keys ``features``, ``label``, ``client``
and ``split`` name the columns. This needs pyarrow: ``pip install ".[parquet]"`` in the
folder of hpcfl (heterogeneity.md D11). ``datasets`` itself is not used, because it
opens any file that a data set names.
"""

import re
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict

from hpcfl.data import checks
from hpcfl.data.sources import arrow, pictures
from hpcfl.data.sources.arrow import ArrowColumns, File
from hpcfl.data.sources.tabular import CLIENT, TEST, TRAIN, TableSource
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording

STATE, PARTS = "state.json", "dataset_dict.json"
MOST_CLIENTS = 100_000
KIND = "Hugging Face's"


class _File(TypedDict):
    filename: str


class _State(TypedDict):
    _data_files: list[_File]
    _indices_data_files: NotRequired[list[_File] | None]


class _Splits(TypedDict):
    splits: list[str]


class HuggingFace(TableSource):
    looked_for = (
        "state.json and its *.arrow",
        "or dataset_dict.json and train/, test/ with these",
        "or CLIENT/ with either",
    )

    def open(self, root: Path) -> ArrowColumns:
        is_one = _is_saved(root)
        folders = [root] if is_one else _list_folders(root)
        files = []
        others: set[str] = set()
        for client, folder in enumerate(folders):
            if (folder / STATE).is_file():
                files += _open_files(folder, None, client)
                continue
            splits = untrusted_files.read_user_json(folder / PARTS, _Splits, KIND)[
                "splits"
            ]
            others.update(splits)
            if not {TRAIN, TEST} & set(splits):
                raise UserError(
                    f"{folder}: has neither '{TRAIN}' nor '{TEST}' among its parts"
                )
            for part in (TRAIN, TEST):
                if part in splits:
                    files += _open_files(folder / part, part, client)
        names = [] if is_one else [folder.name for folder in folders]
        table = ArrowColumns(root, files, names)
        others -= {TRAIN, TEST}
        if others:
            listed = wording.list_names(sorted(others))
            table.notes += (f"{root}: only 'train' and 'test' are read, not {listed}",)
        if names and CLIENT in table.names:
            table.notes += (
                f"{root}: clients are taken from the column '{CLIENT}', not from the folders",
            )
        return table


def _list_folders(root: Path) -> list[Path]:
    """Return the folders of the clients, sorted by name. Raises UserError."""
    with untrusted_files.refuse_unreadable(root, "a folder"):
        entries = sorted(root.iterdir())
    folders = [path for path in entries if _is_saved(path)]
    if not 0 < len(folders) <= MOST_CLIENTS:
        raise UserError(
            f"{root}: has neither {STATE} nor {PARTS}, so it must hold a folder with one of "
            f"these for each client, at most {MOST_CLIENTS:,}; it holds {len(folders):,}"
        )
    for path in entries:
        if path.is_dir() and path not in folders and not path.name.startswith("."):
            raise UserError(
                f"{path}: has neither {STATE} nor {PARTS}, unlike the other folders; save "
                "the data of this client again, or move the folder away"
            )
    return sorted(folders, key=lambda path: _count_numbers(path.name))


def _is_saved(folder: Path) -> bool:
    return (folder / STATE).is_file() or (folder / PARTS).is_file()


def _count_numbers(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers in a name by value."""
    pieces = re.findall(r"(\d+)|(\D+)", name, re.ASCII)
    return [(int(digits[:18] or -1), letters) for digits, letters in pieces]


def _open_files(folder: Path, part: str | None, client: int) -> list[File]:
    """Return the files of one data set with their tables. Raises UserError."""
    place = folder / STATE
    state = untrusted_files.read_user_json(place, _State, KIND)
    if state.get("_indices_data_files"):
        raise UserError(
            f"{folder}: a file of indices selects its rows; save it again after "
            "flatten_indices()"
        )
    names = [file["filename"] for file in state["_data_files"]]
    if not names:
        raise UserError(f"{place}: names no file")
    checks.refuse_repeated(place, "file", names)
    arrow.refuse_missing_shards(folder, names)
    files = []
    for name in names:
        if not re.fullmatch(pictures.NAME, name):
            raise UserError(f"{place}: {name!r:.60} is not a valid file name")
        path = folder / name
        ipc = arrow.import_pyarrow().ipc
        with (
            untrusted_files.refuse_unreadable(path, "an Arrow stream"),
            untrusted_files.open_user_file(path) as file,
        ):
            files.append(File(path, ipc.open_stream(file).read_all(), part, client))
    return files


plugin = HuggingFace()
