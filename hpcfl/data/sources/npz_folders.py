"""Your own clients: a folder (``data.file``) with a folder for each, named like the
client, with .npz files.

A client's folder holds ``data.npz``, or ``train.npz`` and ``test.npz``, all of them as
for ``npz`` but without ``client``. The clients' order is that of their names.
"""

from pathlib import Path

import numpy as np

from hpcfl.data.datasets import DataDescription, Dataset, Owners
from hpcfl.data.sources import npz
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, values, wording

MOST_CLIENTS = 100_000
# The files of a client's folder: all samples in one file, or test samples apart.
WHOLE = ("data.npz",)
APART = ("train.npz", "test.npz")


class ClientFolders(Source):
    own_file = True

    @property
    def looked_for(self) -> list[str]:
        return ["CLIENT/data.npz", "or CLIENT/train.npz and CLIENT/test.npz"]

    def read(self, name: str, root: Path) -> Dataset:
        folders = _folders(root)
        files = _files(folders[0])
        for folder in folders:
            _refuse_other_files(folder, files)
        # The training samples of all clients come first, then their test samples.
        paths = [folder / file for file in files for folder in folders]
        parts = [_arrays(path) for path in paths]
        lengths = [len(arrays["y"]) for arrays in parts]
        clients = [*range(len(folders))] * len(files)
        return npz.made(
            root,
            joined(paths, parts),
            official_test=sum(lengths[len(folders) :]),
            owners=Owners(
                tuple(folder.name for folder in folders), np.repeat(clients, lengths)
            ),
            description=DataDescription(
                features=("x",), label="y", client="the name of the folder"
            ),
        )


def _files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that each client has, by those of the first one."""
    return APART if (folder / APART[0]).exists() else WHOLE


def _refuse_other_files(folder: Path, files: tuple[str, ...]) -> None:
    """Raise UserError where a client's folder holds other .npz files than ``files``."""
    found = sorted(path.name for path in folder.glob("*.npz"))
    missing = sorted(set(files) - set(found))
    others = sorted(set(found) - set(files))
    if missing:
        has = f"; it has {wording.list_names(others)}" if others else ""
        raise UserError(
            f"{folder / missing[0]}: no such file{has}; all clients must have "
            f"{' and '.join(files)} (folders of images are read by data.dataset = "
            "'image-folder')"
        )
    if others:
        raise UserError(
            f"{folder / others[0]}: is not read beside {' and '.join(files)}; move it out "
            "of the folder"
        )


def _folders(root: Path) -> list[Path]:
    """List the clients' folders in the order of names. Raises UserError where there are
    none.
    """
    try:
        folders = []
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                folders.append(path)
            elif path.suffix == ".npz":
                raise UserError(f"{path}: is in no client's folder")
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
    """Return the arrays in one client's file. Raises UserError."""
    arrays = npz.arrays(path)
    heartbeat.beat()
    x = arrays["x"]
    y = arrays["y"]
    if y.ndim != 1 or len(x.shape) < 2 or len(x) != len(y):
        raise UserError(
            f"{path}: x has the shape {x.shape} and y {y.shape}; they must be "
            "[n, …] and [n]"
        )
    if "client" in arrays:
        raise UserError(
            f"{path}: has an array 'client', but its folder names the client; leave it "
            "out, or read one file by data.dataset = 'npz'"
        )
    return arrays


def joined(
    paths: list[Path], parts: list[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the samples of all clients' files in a row. Raises UserError where those of
    two cannot lie in one array, or hold a not-a-number or infinity.
    """
    for path, arrays in zip(paths, parts, strict=True):
        for key in ("x", "y"):
            if _form(arrays[key]) != _form(parts[0][key]):
                raise UserError(
                    f"{path}: {key} is {_form(arrays[key])}, but {_form(parts[0][key])} in "
                    f"{paths[0]}; it must be of one type and shape for all clients"
                )
        place = values.describe_nonfinite(arrays["x"])
        if place:
            raise UserError(f"{path}: x{place}")
    whole = {}
    for key in ("x", "y"):
        whole[key] = np.concatenate([arrays[key] for arrays in parts])
    for path, arrays in zip(paths, parts, strict=True):
        if "classes" not in arrays:
            continue
        stated = whole.setdefault("classes", arrays["classes"])
        if not np.array_equal(stated, arrays["classes"]):
            raise UserError(
                f"{path}: classes is {arrays['classes']}, but {stated} in a file before it"
            )
    return whole


def _form(array: np.ndarray) -> str:
    """Return the type and shape of an array of samples, for a message."""
    sizes = ", ".join(map(str, ("n", *array.shape[1:])))
    return f"{array.dtype} [{sizes}]"


plugin = ClientFolders()
