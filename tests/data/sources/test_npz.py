"""A user's .npz files: one file, or a folder for each client."""

import os

import numpy as np
import pytest
import torch
from user_data import load, owned, refusal

from hpcfl.data import partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import npz


@pytest.fixture
def path(tmp_path):
    return tmp_path / "own.npz"


def save(path, **arrays):
    np.savez(path, **{"x": np.zeros((3, 2)), "y": np.arange(3), **arrays})
    return path


def test_images_values_and_tokens(path):
    y = np.array([0, 2, 1], np.int8)
    images = load("npz", save(path, x=np.full((3, 1, 4, 4), 255, np.uint8), y=y))
    assert images.classes == 3 and images.name == "own"
    assert (images.normalise(images.x) == 1).all()
    values = load("npz", save(path, x=[[0.5], [2.0], [-1.0]], y=y))
    assert values.x.dtype == torch.float32
    assert values.normalise(values.x).equal(values.x)
    ids = load("npz", save(path, x=[[3, 0], [4, 4], [1, 0]], y=y))
    assert ids.vocabulary == 5 and ids.normalise(ids.x) is ids.x


@pytest.mark.parametrize("client", [np.array([10, 9, 10]), np.array(["b", "a", "b"])])
def test_an_array_names_the_clients(path, client):
    names = {str(client[1]): [1], str(client[0]): [0, 2]}
    assert owned(load("npz", save(path, client=client))) == names


def test_other_arrays_are_noted(path):
    data = load("npz", save(path, clients=np.arange(3)))
    assert "'clients' are ignored" in data.notes[0] and data.owners is None
    expected = r"an array 'client' in an npz file; it has 'clients'; a column"
    with pytest.raises(Exception, match=expected):
        partition.make(by_client(clients=3), data)


NAN = np.array([[0, 0], [0, np.nan], [0, 0]])


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"y": np.zeros(2, int)}, "(3, 2) and y (2,)"),
        ({"y": np.zeros((3, 1), int)}, "y (3, 1)"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "(0, 2)"),
        ({"y": np.array([0, np.nan, 1])}, "it is float64"),
        ({"y": np.array([0, -1, 2])}, "it is int64 from -1"),
        ({"y": np.array([0, 1, 2**64 - 1], np.uint64)}, "18,446,744,073,709,551,615"),
        ({"x": NAN}, "x[1, 1] is nan"),
        ({"x": np.full((3, 2), -1)}, "token ids"),
        ({"x": np.full((3, 2), "a")}, "<U1"),
        ({"x": np.full((3, 2), 10**7)}, "10,000,000; "),
        ({"x": np.full((3, 2), 2**64 - 1, np.uint64)}, "18,446,744,073,709,551,615"),
        ({"classes": 2}, "2; it must be below 2"),
        ({"classes": 10**9}, "100,000; it is array(1000000000"),
        ({"classes": 3.0}, "1 to 100,000"),
        ({"classes": [3]}, "1 to 100,000"),
        ({"client": np.zeros(2, int)}, "client must be [3]"),
        ({"client": np.zeros((3, 1), int)}, "client must be [3]"),
        ({"client": np.zeros(3)}, "client must be [3]"),
        ({"x": np.array([{}, {}, {}])}, "own.npz: "),
    ],
)  # fmt: skip
def test_arrays_that_cannot_be_used_are_refused(path, arrays, expected):
    line = refusal("npz", save(path, **arrays))
    assert expected in line and line.startswith(f"{path}: ")


def test_numbers_that_float32_cannot_distinguish_are_refused(path):
    x = 1e9 + np.arange(12.0)[:, None]
    line = refusal("npz", save(path, x=x, y=np.zeros(12, int)))
    assert "column 0 of x has 12 " in line


def test_invalid_files_are_refused(path):
    os.mkfifo(path)
    assert str(path) in refusal("npz", path)
    path.unlink()
    path.write_text("something else")
    assert "own.npz: " in refusal("npz", path)
    np.savez(path, x=np.zeros(3), Y=np.zeros(3))
    assert "'x', 'Y'" in refusal("npz", path)
    line = refusal("npz", path.rename(path.with_suffix(".csv")))
    assert "data.dataset = 'csv'" in line


def test_an_array_that_grows_beyond_its_file_is_refused(path, monkeypatch):
    monkeypatch.setattr(npz, "UNPACKED", 1000)
    arrays = {"x": np.zeros((30_000, 10), np.uint8), "y": np.zeros(30_000, np.uint8)}
    np.savez_compressed(path, **arrays)
    assert "300,128 bytes" in refusal("npz", path)
    assert load("npz", save(path, **arrays)).shape == (10,)


@pytest.mark.parametrize(
    ("arrays", "classes", "expected"),
    [
        ({"y": [0, 1, 2]}, 3, None),
        (
            {"y": [1, 2, 3]},
            4,
            "class 0 of 0 … 3, ",
        ),
        ({"y": [0, 3, 9], "classes": 12}, 12, None),
    ],
)
def test_class_numbers_with_gaps_are_noted(path, arrays, classes, expected):
    data = load("npz", save(path, **arrays))
    assert data.classes == classes
    assert expected in data.notes[0] if expected else data.notes == ()


RANDOM = np.random.default_rng(1)
PIXELS = 128 + RANDOM.integers(0, 128, (40, 6))
HALVES = np.repeat(["ann", "bob"], 20)
OUTLIER = RANDOM.random((40, 3))
OUTLIER[3] = 1e6


@pytest.mark.parametrize(
    ("x", "is_noted"),
    [
        (PIXELS, False),
        (np.where(HALVES[:, None] == "bob", 1, PIXELS), True),
        (np.where(HALVES[:, None] == "bob", 0, PIXELS), False),
        (OUTLIER, False),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_clients_with_values_on_another_scale_are_noted(path, x, is_noted, dtype):
    data = load(
        "npz", save(path, x=x.astype(dtype), y=np.zeros(40, int), client=HALVES)
    )
    noted = any("in client 'ann', but 1 in client 'bob'" in n for n in data.notes)
    assert noted is is_noted and len(data.notes) == is_noted


def test_test_samples_on_another_scale_are_noted(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"{200 + row},{row % 2},train" for row in range(0, 40, 3)]
    lines += [f"{0.5 + row / 100},{row % 2},test" for row in range(20)]
    path.write_text("\n".join(["x,label,split", *lines]) + "\n")
    [note] = load("csv", path).notes
    assert " 0.595 " in note


def save_clients(root, **clients):
    root.mkdir()
    for name, files in clients.items():
        (root / name).mkdir()
        for file, (x, y) in files.items():
            np.savez(root / name / f"{file}.npz", x=np.array(x)[:, None], y=np.array(y))
    return root


ONE = ([1.0], [0])


def test_a_folder_for_each_client(tmp_path):
    b, a = {"data": ([1.0, 2.0], [0, 1])}, {"data": ([3.0, 4.0], [2, 0])}
    data = load("npz-folders", save_clients(tmp_path / "clients", b=b, a=a))
    assert owned(data) == {"a": [0, 1], "b": [2, 3]} and data.name == "clients"
    assert data.x[:, 0].tolist() == [3, 4, 1, 2] and data.official_test == 0
    assert data.classes == 3


def test_folders_with_training_and_test_samples(tmp_path):
    root = save_clients(
        tmp_path / "clients",
        a={"train": ([1.0, 2.0], [0, 1]), "test": ([3.0], [1])},
        b={"train": ([4.0], [0]), "test": ([5.0, 6.0], [1, 1])},
    )
    data = load("npz-folders", root)
    assert data.x[:, 0].tolist() == [1, 2, 4, 3, 5, 6] and data.official_test == 3
    split = partition.make(by_client(clients=2), data)
    assert [held.tolist() for held in split.train] == [[0, 1], [2]]
    assert [held.tolist() for held in split.test] == [[3], [4, 5]]


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ({}, "100,000; it holds 0"),
        ({"a": {"data": ONE}, "b": {}}, "b: "),
        ({"a": {"train": ONE}}, "a: holds train.npz; "),
        ({"a": {"data": ONE, "valid": ONE}}, "a: holds data.npz, valid.npz; "),
        ({"a": {"data": ONE}, "b": {"data": ([1], [0])}}, "b/data.npz: x is int64 [n, 1] "),
        ({"a": {"data": ONE}, "b": {"data": ([[1.0, 2.0]], [0])}}, "b/data.npz: x is float64 [n, 1, 2]"),
        ({"a": {"data": ([1.0, np.nan], [0, 1])}}, "a/data.npz: x[1, 0] is nan"),
        ({"a": {"data": ([1.0], [0, 1])}}, "a/data.npz: x has the shape (1, 1) and y (2,)"),
        ({"a": {"data": ([1.0], [-1])}}, "clients: y "),
    ],
)  # fmt: skip
def test_invalid_folders_are_refused(tmp_path, clients, expected):
    assert expected in refusal(
        "npz-folders", save_clients(tmp_path / "clients", **clients)
    )


def test_a_client_is_named_by_its_folder_alone(tmp_path):
    root = save_clients(tmp_path / "clients", a={"data": ONE}, b={"data": ONE})
    arrays = {"x": np.ones((1, 1)), "y": [0]}
    np.savez(root / "a" / "data.npz", **arrays, classes=3)
    np.savez(root / "b" / "data.npz", **arrays, classes=2)
    assert "[2, 3]" in refusal("npz-folders", root)
    for classes in (["cat", "dog"], 2.5):
        np.savez(root / "b" / "data.npz", **arrays, classes=classes)
        assert "b/data.npz: classes " in refusal("npz-folders", root)
    np.savez(root / "a" / "data.npz", **arrays, client=["b"])
    assert "data.npz: has an array 'client'" in refusal("npz-folders", root)
    np.savez(root / "loose.npz", **arrays)
    assert "loose.npz: " in refusal("npz-folders", root)
    assert "loose.npz: " in refusal("npz-folders", root / "loose.npz")
