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
# What a client's folder may hold: all samples in one file, or test samples apart.
WHOLE = ("data.npz",)
APART = ("train.npz", "test.npz")


class ClientFolders(Source):
    own_file = True

    @property
    def looked_for(self) -> list[str]:
        return ["CLIENT/data.npz", "or CLIENT/train.npz and CLIENT/test.npz"]

    def read(self, name: str, root: Path) -> Dataset:
        folders = _folders(root)
        files = APART if (folders[0] / APART[0]).exists() else WHOLE
        # The training samples of all clients come first, then their test samples.
        parts = []
        clients = []
        for file in files:
            for client, folder in enumerate(folders):
                parts.append(_arrays(folder / file))
                clients.append(client)
        lengths = [len(arrays["y"]) for arrays in parts]
        names = tuple(folder.name for folder in folders)
        return npz.made(
            root,
            joined(root, parts),
            official_test=sum(lengths[len(folders) :]),
            owners=Owners(names, np.repeat(clients, lengths)),
        )


def _folders(root: Path) -> list[Path]:
    """The clients' folders in the order of names. Raises UserError where there are
    none.
    """
    try:
        folders = []
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                folders.append(path)
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
    arrays = npz.arrays(path)
    heartbeat.beat()
    x = arrays["x"]
    y = arrays["y"]
    if y.ndim != 1 or len(x.shape) < 2 or len(x) != len(y):
        raise UserError(
            f"{path}: x has the shape {x.shape} and y {y.shape}; they must be "
            "[n, …] and [n]"
        )
    return arrays


def joined(root: Path, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The samples of all clients in a row. Raises UserError where those of two cannot
    lie in one array.
    """
    for key in ("x", "y"):
        kinds = set()
        for arrays in parts:
            shape = ["n", *arrays[key].shape[1:]]
            kinds.add(f"{arrays[key].dtype} {shape}")
        if len(kinds) > 1:
            raise UserError(
                f"{root}: {key} must be of one type and shape for all clients; it is "
                f"{' and '.join(sorted(kinds)[:3])}"
            )
    whole = {}
    for key in ("x", "y"):
        whole[key] = np.concatenate([arrays[key] for arrays in parts])
    classes = [arrays["classes"] for arrays in parts if "classes" in arrays]
    if any(not np.array_equal(names, classes[0]) for names in classes):
        raise UserError(f"{root}: classes must be the same in all files that have it")
    if classes:
        whole["classes"] = classes[0]
    return whole


plugin = ClientFolders()
