"""CIFAR's pickled batches: their content, and that no code in them runs."""

import os
import pickle

import numpy as np
import pytest
from user_data import load, md5, refusal

from hpcfl.data.sources import cifar

FILES = ("data_batch_1", "data_batch_2", "test_batch")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write two training batches and a test batch of two images each; the values of an
    image are its number.
    """
    folder = tmp_path / "cifar"
    folder.mkdir()
    checksums = {}
    for number, file in enumerate(FILES):
        data = np.repeat([[2 * number], [2 * number + 1]], 3 * 32 * 32, axis=1)
        batch = {"data": data.astype(np.uint8), "labels": [number, 9]}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=3))
        checksums[file] = md5(folder / file)
    source = cifar.PickledBatches(
        "CIFAR10",
        "cifar",
        checksums,
        labels="labels",
        classes=10,
        statistics=((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    )
    monkeypatch.setitem(cifar.plugins, "cifar-10", source)
    return folder


@pytest.fixture
def replace_batch(folder, monkeypatch):
    """Replace a batch and its checksum."""

    def replace(file, content):
        (folder / file).write_bytes(content)
        source = cifar.plugins["cifar-10"]
        monkeypatch.setitem(source.checksums, file, md5(folder / file))

    return replace


def test_batches_are_train_then_test(tmp_path, folder):
    data = load("cifar-10", tmp_path)
    assert data.x.shape == (6, 3, 32, 32) and data.official_test == 2
    assert data.x[:, 2, 5, 7].tolist() == list(range(6))
    assert data.y.tolist() == [0, 9, 1, 9, 2, 9]


class Call:
    """A pickle that calls ``os.mkdir`` when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"data": Call(), "labels": [1]}, "it names the object posix.mkdir"),
        ({"data": np.zeros((2, 5), np.uint8), "labels": [1, 2]}, "cannot reshape"),
        (b"", "Ran out of input"),
    ],
)
def test_invalid_batches_are_refused_without_calling_their_code(
    tmp_path, replace_batch, monkeypatch, batch, expected
):
    monkeypatch.chdir(tmp_path)
    content = batch if batch == b"" else pickle.dumps(batch, protocol=3)
    replace_batch("data_batch_2", content)
    line = refusal("cifar-10", tmp_path)
    assert "data_batch_2: " in line and f"({expected}" in line
    assert not (tmp_path / "made").exists()


def test_a_damaged_pickle_is_never_opened(tmp_path, folder):
    (folder / "test_batch").write_bytes(b"cbuiltins\nexit\n(tR.")
    assert "test_batch: " in refusal("cifar-10", tmp_path)


def test_pickles_of_python_2(tmp_path, replace_batch):
    """As written by NumPy 1: a module that was moved later, and bytes as strings."""
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00"
        + b"\xfe" * 3072
        + b"tbU\x06labels](K\x07eu."
    )
    replace_batch("test_batch", content)
    data = load("cifar-10", tmp_path)
    assert data.y[4:].tolist() == [7] and (data.x[4] == 254).all()
