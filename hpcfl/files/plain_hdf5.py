"""Checks that an HDF5 file holds only plain numbers, stored in the file itself.

Other HDF5 files can open further files, follow links, unpack a few bytes into all of
memory or create Python objects. The checks therefore cover the whole file before any
data is read.
"""

import math

import h5py
import numpy as np
from h5py import h5a, h5d, h5s

from hpcfl.files.atomic import Damaged

TYPES = {
    np.dtype(kind)
    for kind in (bool, "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}
OBJECTS = 4000  # the most in a file
ATTRIBUTES = 100  # the most of the root
DEPTH = 8  # the most levels of groups in groups


def datasets(file: h5py.File, size: int) -> dict[str, h5py.Dataset]:
    """Return all datasets of a file of ``size`` bytes by path, including groups.

    Raises Damaged for other datasets, and h5py's exceptions for a broken file.
    """
    by_path: dict[str, h5py.Dataset] = {}
    groups, objects, left = [("", file)], 0, size
    while groups:
        path, group = groups.pop()
        objects += len(group)
        if objects > OBJECTS or path.count("/") > DEPTH:
            raise Damaged(
                f"more than {OBJECTS} objects, or groups nested more than {DEPTH} deep"
            )
        for name in group:
            item = _item(group, name)
            if isinstance(item, h5py.Group):
                groups.append((f"{path}{name}/", item))
            else:
                by_path[path + name] = item
                left -= _bytes(item)
                if (
                    left < 0
                ):  # hard links to the same data count each time, for each would be read
                    raise Damaged(f"more data than the file's {size} bytes")
    return by_path


def attributes(file: h5py.File, size: int) -> dict[str, str]:
    """Return the root's text attributes, of at most ``size`` characters in all.

    Raises Damaged for other attributes, and h5py's exceptions for a broken file.
    """
    if h5a.get_num_attrs(file.id) > ATTRIBUTES:
        raise Damaged(f"more than {ATTRIBUTES} attributes")
    texts: dict[str, str] = {}
    for name in file.attrs:
        attribute = file.attrs.get_id(name)
        kind = attribute.get_type()
        if (
            not isinstance(kind, h5py.h5t.TypeStringID)
            or not kind.is_variable_str()
            or attribute.get_space().get_simple_extent_type() != h5s.SCALAR
        ):
            raise Damaged(f"attribute {name!r} is not a text")
        texts[name] = file.attrs[name]
        size -= len(texts[name])
        if size < 0:
            raise Damaged("more text than the file has bytes")
    return texts


def _item(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return the group or dataset ``name`` of a group. Raises Damaged for anything
    else.
    """
    if (
        "/" in name
        or name == "."
        or not isinstance(group.get(name, getlink=True), h5py.HardLink)
    ):
        raise Damaged(f"{name!r} is a link")
    item = group[name]
    if not isinstance(item, h5py.Group | h5py.Dataset):
        raise Damaged(f"{name!r} is neither a group nor a dataset")
    return item


def _bytes(dataset: h5py.Dataset) -> int:
    """Return the size of a dataset with plain contiguous storage. Raises Damaged for
    others.
    """
    properties = dataset.id.get_create_plist()
    inside = (
        properties.get_layout() in (h5d.CONTIGUOUS, h5d.COMPACT)
        and not properties.get_external_count()
    )
    if not inside or properties.get_nfilters():
        raise Damaged(f"{dataset.name!r} is external, virtual, chunked or compressed")
    if dataset.dtype not in TYPES:
        raise Damaged(f"{dataset.name!r} has a type that is no plain number")
    size = (
        math.prod(dataset.shape) * dataset.dtype.itemsize
        if dataset.shape is not None
        else -1
    )
    if size != dataset.id.get_storage_size():
        raise Damaged(
            f"{dataset.name!r} has shape {dataset.shape} and {dataset.id.get_storage_size()} bytes"
        )
    return size
