"""Data sets that experiments load from a user's files or folders."""

import hashlib

import numpy as np
from refusals import expect_refusal

from hpcfl.data import datasets
from hpcfl.experiment import config


def load(dataset, place, **keys):
    """Load a data set from ``data.file``, or a public one from ``data.root``."""
    key = "file" if datasets.find(dataset).own_file else "root"
    table = {"dataset": dataset, key: str(place), **keys}
    parsed = config.parse({"method": {"name": "local"}, "data": table})
    return datasets.load(parsed.data)


def refusal(dataset, place, **keys):
    """Return the error line for a refused data set."""
    with expect_refusal() as caught:
        load(dataset, place, **keys)
    [line] = str(caught.value).splitlines()
    return line


def owned(data):
    """Return the sample numbers of each natural client."""
    return {
        name: np.flatnonzero(data.owners.numbers == number).tolist()
        for number, name in enumerate(data.owners.names)
    }


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def numbers(seed, *shape):
    """Return random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    """Return the bytes of an IDX file with an array of bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
