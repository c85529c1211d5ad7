"""Your own clients: a folder (``data.file``) with a folder for each, named like the
client, with .npz files.

A client's folder holds ``data.npz``, or ``train.npz`` and ``test.npz``, all of them as
for ``npz``. The clients' order is that of their names.
"""

from pathlib import Path

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.data.owners import Owners
from hpcfl.data.sources import npz
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat

MOST_CLIENTS = 100_000
WHOLE, APART = (
    ("data.npz",),
    ("train.npz", "test.npz"),
)  # what a client's folder may hold


class ClientFolders(Source):
    own_file = True

    def read(self, name: str, root: Path) -> Dataset:
        folders = _folders(root)
        files = APART if (folders[0] / APART[0]).exists() else WHOLE
        parts = [[_arrays(folder / file) for folder in folders] for file in files]
        lengths = [len(one["y"]) for part in parts for one in part]
        of = np.repeat(np.tile(np.arange(len(folders)), len(files)), lengths)
        official_test = sum(lengths[len(folders) :])
        return npz.made(
            root,
            _joined(root, [one for part in parts for one in part]),
            official_test=official_test,
            owners=Owners(tuple(folder.name for folder in folders), of),
        )


def _folders(root: Path) -> list[Path]:
    """The clients' folders in the order of names. Raises UserError where there are
    none.
    """
    try:
        folders = sorted(
            path
            for path in root.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )
    except OSError as error:
        raise UserError(
            f"{root}: cannot be read as a folder of clients ({atomic.reason(error)})"
        ) from None
    if not 0 < len(folders) <= MOST_CLIENTS:
        raise UserError(
            f"{root}: must hold a folder for each client, at most {MOST_CLIENTS:,}; "
            f"it holds {len(folders):,}"
        )
    return folders


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in one client's file. Raises UserError."""
    read = npz.arrays(path)
    heartbeat.beat()
    if (
        read["y"].ndim != 1
        or len(read["x"].shape) < 2
        or len(read["x"]) != len(read["y"])
    ):
        raise UserError(
            f"{path}: x has the shape {read['x'].shape} and y {read['y'].shape}; they must be "
            "[n, …] and [n]"
        )
    return read


def _joined(root: Path, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The samples of all clients in a row. Raises UserError where those of two cannot
    lie in one array.
    """
    for key in ("x", "y"):
        kinds = {f"{one[key].dtype} {['n', *one[key].shape[1:]]}" for one in parts}
        if len(kinds) > 1:
            raise UserError(
                f"{root}: {key} must be of one type and shape for all clients; it is "
                f"{' and '.join(sorted(kinds)[:3])}"
            )
    joined = {key: np.concatenate([one[key] for one in parts]) for key in ("x", "y")}
    said = [one["classes"] for one in parts if "classes" in one]
    if any(not np.array_equal(one, said[0]) for one in said):
        raise UserError(f"{root}: classes must be the same in all files that have it")
    return joined | ({"classes": said[0]} if said else {})


plugin = ClientFolders()
