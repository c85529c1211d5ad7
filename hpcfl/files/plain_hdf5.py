"""Plain HDF5: numbers that lie in the file itself, as they are. hpcfl writes nothing else, and
reads nothing else.

HDF5 can do more on behalf of a file: read other files, follow links to them, unpack a few bytes into all
of memory, make Python objects. So everything in a file is looked at before any of it is read.
"""

import math

import h5py
import numpy as np
from h5py import h5a, h5d, h5s

from hpcfl.files.atomic import Damaged

TYPES = {np.dtype(kind) for kind in (bool, "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}
OBJECTS = 4000  # in a file at most
ATTRIBUTES = 100  # of the root at most
DEPTH = 8  # groups in groups at most


def datasets(file: h5py.File, size: int) -> dict[str, h5py.Dataset]:
    """All datasets of a file of ``size`` bytes by path, however deep. Raises Damaged unless they are plain,
    and what h5py raises for a broken file.
    """
    found: dict[str, h5py.Dataset] = {}
    groups, objects, room = [("", file)], 0, size
    while groups:
        path, group = groups.pop()
        objects += len(group)
        if objects > OBJECTS or path.count("/") > DEPTH:
            raise Damaged(f"more than {OBJECTS} objects, or groups nested more than {DEPTH} deep")
        for name in group:
            item = _item(group, name)
            if isinstance(item, h5py.Group):
                groups.append((f"{path}{name}/", item))
            else:
                found[path + name] = item
                room -= _bytes(item)
                if room < 0:  # hard links to the same data count each time, for each would be read
                    raise Damaged(f"more data than the file's {size} bytes")
    return found


def attributes(file: h5py.File, size: int) -> dict[str, str]:
    """The root's attributes, texts of ``size`` bytes at most in all. Raises Damaged, and what h5py raises."""
    if h5a.get_num_attrs(file.id) > ATTRIBUTES:
        raise Damaged(f"more than {ATTRIBUTES} attributes")
    found: dict[str, str] = {}
    for name in file.attrs:
        attribute = file.attrs.get_id(name)
        kind = attribute.get_type()
        if (not isinstance(kind, h5py.h5t.TypeStringID) or not kind.is_variable_str()
                or attribute.get_space().get_simple_extent_type() != h5s.SCALAR):
            raise Damaged(f"attribute {name!r} is not a text")
        found[name] = file.attrs[name]
        size -= len(found[name])
        if size < 0:
            raise Damaged("more text than the file has bytes")
    return found


def _item(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """What ``name`` in a group stands for, if that is in this file and of a kind that hpcfl writes."""
    if "/" in name or name == "." or not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise Damaged(f"{name!r} is a link")
    item = group[name]
    if not isinstance(item, h5py.Group | h5py.Dataset):
        raise Damaged(f"{name!r} is neither a group nor a dataset")
    return item


def _bytes(dataset: h5py.Dataset) -> int:
    """The size of a dataset whose numbers lie in the file as they are. Raises Damaged for any other."""
    how = dataset.id.get_create_plist()
    here = how.get_layout() in (h5d.CONTIGUOUS, h5d.COMPACT) and not how.get_external_count()
    if not here or how.get_nfilters():
        raise Damaged(f"{dataset.name!r} is external, virtual, chunked or compressed")
    if dataset.dtype not in TYPES:
        raise Damaged(f"{dataset.name!r} has a type that is no plain number")
    size = math.prod(dataset.shape) * dataset.dtype.itemsize if dataset.shape is not None else -1
    if size != dataset.id.get_storage_size():
        raise Damaged(f"{dataset.name!r} has shape {dataset.shape} and {dataset.id.get_storage_size()} bytes")
    return size
