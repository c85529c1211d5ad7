"""Actions that HDF5 would take for a file are refused before they begin."""

import io
import os

import h5py
import numpy as np
import pytest

from hpcfl.files import hdf5
from hpcfl.files.atomic import Damaged

SECRET = b"secret, said the file next to it"
NUMBERS = np.arange(6, dtype=np.float32)


def external_storage(file, folder):
    file.create_dataset("x", (32,), "u1", external=[(str(folder / "secret"), 0, 32)])


def external_link(file, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = NUMBERS
    file["x"] = h5py.ExternalLink(str(folder / "other.h5"), "x")


def virtual_dataset(file, folder):
    external_link(file, folder)
    del file["x"]
    layout = h5py.VirtualLayout((6,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", (6,))
    file.create_virtual_dataset("x", layout)


def less_data_than_its_shape(file, folder):
    file["y"] = np.zeros(1000)
    file.create_dataset("x", (10,), "f8")


def chunked(file, folder):
    file.create_dataset("x", data=NUMBERS, chunks=(2,))


def texts(file, folder):
    file["x"] = ["a", "b"]


def references(file, folder):
    file.create_dataset("x", data=[file.ref], dtype=h5py.ref_dtype)


def ragged(file, folder):
    file.create_dataset("x", (2,), h5py.vlen_dtype(np.int64))


def other_byte_order(file, folder):
    file["x"] = NUMBERS.astype(">f4")


def nothing(file, folder):
    file["x"] = h5py.Empty("f4")


def named_type(file, folder):
    file["x"] = np.dtype("f4")


def circle(file, folder):
    file["x"] = file["/"]


def one_dataset_often(file, folder):
    file["x"] = np.zeros(1000)
    for i in range(1000):
        file[f"{i}"] = file["x"]


def many_groups(file, folder):
    for i in range(5000):
        file.create_group(f"{i}")


def deep_groups(file, folder):
    file["/".join("a" * 30)] = NUMBERS


HOSTILE = [
    external_storage,
    external_link,
    virtual_dataset,
    less_data_than_its_shape,
    chunked,
    texts,
    references,
    ragged,
    other_byte_order,
    nothing,
    named_type,
    circle,
    one_dataset_often,
    many_groups,
    deep_groups,
]


def hostile(make, folder):
    (folder / "secret").write_bytes(SECRET)
    path = folder / "hostile.h5"
    with h5py.File(path, "w") as file:
        file["fine"] = NUMBERS
        make(file, folder)
    return path


@pytest.mark.slow
@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", HOSTILE)
def test_only_plain_numbers_in_the_file_itself_are_read(tmp_path, make):
    path = hostile(make, tmp_path)
    for read in (
        lambda: hdf5.select(path, None),
        lambda: hdf5.select(path, [0]),
        lambda: hdf5.decode(path.read_bytes()),
    ):
        with pytest.raises(Damaged) as caught:
            read()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"a": 3}, "'a'"),
        ({"a": np.bytes_(b"fixed")}, "'a'"),
        ({"a": ["a", "b"]}, "'a'"),
        ({"a": h5py.Empty("f4")}, "'a'"),
        ({str(number): "x" for number in range(200)}, "100"),
    ],
)
def test_attributes_are_a_few_texts(tmp_path, attributes, expected):
    with h5py.File(tmp_path / "file", "w") as file:
        file.attrs.update(attributes)
    with pytest.raises(Damaged, match=expected):
        hdf5.decode((tmp_path / "file").read_bytes())


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "plant",
    [lambda path, other: path.symlink_to(other), lambda path, other: os.mkfifo(path)],
)
def test_a_file_is_not_opened_through_a_link_or_pipe(tmp_path, plant):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = NUMBERS
    plant(tmp_path / "file.h5", tmp_path / "other.h5")
    with pytest.raises(Damaged):
        hdf5.select(tmp_path / "file.h5", None)


def test_arrays_of_all_plain_types_are_read_unchanged(tmp_path):
    arrays = {
        f"{kind}/of{shape}": np.ones(shape, kind)
        for kind in ("?", "i1", "u2", "i8", "u8", "f2", "f4", "f8")
        for shape in ((), (0,), (3,), (2, 0, 4), (5, 3))
    }
    found, attributes = hdf5.decode(
        bytes(hdf5.encode(arrays, {"text": "ünï" * 50_000}))
    )
    assert attributes == {"text": "ünï" * 50_000} and found.keys() == arrays.keys()
    assert all(
        np.array_equal(found[name], arrays[name])
        and found[name].dtype == arrays[name].dtype
        for name in arrays
    )


def test_rows_are_selected(tmp_path):
    (tmp_path / "file").write_bytes(hdf5.encode({"x": np.arange(12).reshape(4, 3)}, {}))
    assert hdf5.select(tmp_path / "file", [1, 3])["x"].tolist() == [
        [3, 4, 5],
        [9, 10, 11],
    ]
    with pytest.raises(Damaged):
        hdf5.select(tmp_path / "file", [4])


def test_the_order_of_writing_changes_no_byte():
    datasets = {name: np.arange(5.0) for name in ("b", "a/x", "a/c")}
    attributes = {f"{number}": "x" * number for number in range(20)}
    turned = dict(reversed(datasets.items())), dict(reversed(attributes.items()))
    assert bytes(hdf5.encode(datasets, attributes)) == bytes(hdf5.encode(*turned))


def test_datasets_have_no_time_that_would_change_the_bytes():
    with h5py.File(io.BytesIO(hdf5.encode({"x": np.zeros(2)}, {}))) as file:
        assert not file["x"].id.get_create_plist().get_obj_track_times()
