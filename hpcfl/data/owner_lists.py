"""A user's file of index lists: the sample numbers of each client by its name, in JSON
or HDF5.

JSON: ``{"ann": [0, 5, 6], …}``, or ``{"ann": {"train": [0, 5], "test": [6]}, …}``.
HDF5: a dataset for each client, or a group with the datasets ``train`` and ``test``,
plain as h5py writes an array.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.datasets import Held
from hpcfl.errors import UserError
from hpcfl.files import atomic, hdf5, untrusted_files, user_files
from hpcfl.files.atomic import Damaged

MOST_BYTES = 1 << 28
MAGIC = b"\x89HDF\r\n\x1a\n"  # an HDF5 file begins with it
PARTS = {"train", "test"}


def read(path: str) -> list[Held]:
    """Read each client's samples, clients in the order of the file (HDF5: of names).

    Raises UserError where the file cannot be read, or is anything else.
    """
    file = Path(path).expanduser()
    try:
        content = user_files.read_bytes(file, MOST_BYTES)
        by_client = (
            _hdf5(content)
            if content.startswith(MAGIC)
            else untrusted_files.parsed(content)
        )
        if not isinstance(by_client, dict) or not by_client:
            raise Damaged(
                "it must hold a list of sample numbers for each client, by its name"
            )
        if set(by_client) == PARTS:
            raise Damaged(
                "it must hold the clients by their names, each with 'train' and 'test'; it "
                "holds 'train' and 'test' alone"
            )
        held = [_held(name, lists) for name, lists in by_client.items()]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({atomic.reason(error)})") from None
    except Damaged as error:
        raise UserError(
            f"{path}: cannot be used as clients' lists of samples ({error})"
        ) from None
    forms = {client.test is None for client in held}
    if len(forms) > 1:
        raise UserError(
            f"{path}: some clients have one list, others 'train' and 'test'; all must be alike"
        )
    return held


def _hdf5(content: bytes) -> dict[str, Any]:
    """Return the lists in an HDF5 file, nested as in JSON. Raises Damaged."""
    arrays, _ = hdf5.decode(content)
    by_client: dict[str, Any] = {}
    for place, array in sorted(arrays.items()):
        name, part = os.path.split(place)
        if part in PARTS and name:
            by_client.setdefault(name, {})[part] = array
        else:
            by_client[place] = array
    return by_client


def _held(name: str, lists: Any) -> Held:
    """One client's samples. Raises Damaged."""
    if not isinstance(lists, dict):
        return Held(name, _samples(name, lists))
    if set(lists) != PARTS:
        raise Damaged(
            f"client '{name}' must have a list of sample numbers, or two called 'train' and 'test'"
        )
    return Held(name, _samples(name, lists["train"]), _samples(name, lists["test"]))


def _samples(name: str, numbers: Any) -> np.ndarray:
    """Return a list of sample numbers, ascending, int64. Raises Damaged."""
    if not _are_integers(numbers):
        raise Damaged(
            f"client '{name}' must have a list of sample numbers, 0, 1, …; it has {numbers!r:.60}"
        )
    samples = np.sort(np.asarray(numbers, np.int64))
    repeated = samples[1:][samples[1:] == samples[:-1]]
    if len(repeated):
        raise Damaged(f"client '{name}' has sample {repeated[0]} twice")
    return samples


def _are_integers(numbers: Any) -> bool:
    """Return whether this is a list or an array ``[n]`` of integers that int64 can
    hold.
    """
    if isinstance(numbers, list):
        return all(type(number) is int and abs(number) < 2**62 for number in numbers)
    if not isinstance(numbers, np.ndarray):
        return False
    return numbers.dtype.kind in "iu" and numbers.ndim == 1
