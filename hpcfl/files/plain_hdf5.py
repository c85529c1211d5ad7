"""Plain HDF5: numbers that lie in the file itself, as they are; hpcfl writes and reads
nothing else.

Other HDF5 files can make a reader open further files, follow links to them, unpack a
few bytes into all of memory or make Python objects. So everything in a file is looked
at before any of it is read.
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
    """All datasets of a file of ``size`` bytes by path, also those in groups.

    Raises Damaged unless all are plain, and what h5py raises for a broken file.
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
    """The root's attributes by name: texts of at most ``size`` characters in all.

    Raises Damaged for others, and what h5py raises for a broken file.
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
    """The group or dataset called ``name`` in a group. Raises Damaged for links and all
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
    """The size of a dataset whose numbers lie in the file as they are. Raises Damaged
    for any other.
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
