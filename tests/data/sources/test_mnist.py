"""MNIST, KMNIST (heterogeneity.md D2), and downloaded and checked files."""

import gzip
import os
from dataclasses import replace

import numpy as np
import pytest
from refusals import expect_refusal
from user_data import idx, load, md5, numbers, refusal

from hpcfl.data import datasets
from hpcfl.data.sources import mnist
from hpcfl.experiment import config


def expect_files(monkeypatch, name, folder):
    """Register the files in a folder as those of a data set."""
    checksums = {file: md5(folder / file) for file in mnist.plugins[name].checksums}
    source = replace(mnist.plugins[name], checksums=checksums)
    monkeypatch.setitem(mnist.plugins, name, source)


@pytest.fixture
def kmnist_files(tmp_path, monkeypatch):
    """Write three training and two test images, compressed, and unpacked for
    torchvision.
    """
    folder = tmp_path / "KMNIST/raw"
    folder.mkdir(parents=True)
    parts = [
        numbers(0, 3, 28, 28),
        np.array([3, 0, 9], np.uint8),
        numbers(1, 2, 28, 28),
        np.array([1, 1], np.uint8),
    ]
    for file, part in zip(mnist.plugins["kmnist"].checksums, parts, strict=True):
        (folder / file).write_bytes(gzip.compress(idx(part)))
        (folder / file.removesuffix(".gz")).write_bytes(idx(part))
    expect_files(monkeypatch, "kmnist", folder)
    return tmp_path


@pytest.mark.slow
def test_kmnist_is_as_torchvision_reads_it(kmnist_files, torchvision):
    data = load("kmnist", kmnist_files)
    assert data.official_test == 2 and data.classes == 10
    for train, span in ((True, slice(0, 3)), (False, slice(3, 5))):
        theirs = torchvision.datasets.KMNIST(kmnist_files, train=train)
        assert data.x[span, 0].equal(theirs.data)
        assert data.y[span].equal(theirs.targets)


def test_the_compressed_files_are_those_that_are_read(kmnist_files):
    for path in (kmnist_files / "KMNIST/raw").iterdir():
        if path.suffix != ".gz":
            path.unlink()
    assert load("kmnist", kmnist_files).y.tolist() == [3, 0, 9, 1, 1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write five training and three test images 1×2×3 in MNIST's format."""
    folder = tmp_path / "MNIST/raw"
    folder.mkdir(parents=True)
    images = np.arange(48, dtype=np.uint8).reshape(8, 2, 3)
    labels = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=np.uint8)
    parts = [images[:5], labels[:5], images[5:], labels[5:]]
    for file, part in zip(mnist.plugins["mnist"].checksums, parts, strict=True):
        (folder / file).write_bytes(idx(part))
    expect_files(monkeypatch, "mnist", folder)
    return folder


def test_mnist_is_train_then_test(tmp_path, folder, monkeypatch):
    data = load("mnist", tmp_path)
    assert data.x.shape == (8, 1, 2, 3) and data.official_test == 3
    assert data.x.flatten().tolist() == list(range(48))
    assert data.y.tolist() == [3, 1, 4, 1, 5, 9, 2, 6]
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path))
    assert len(datasets.load(config.Data(dataset="mnist")).y) == 8


@pytest.mark.parametrize("change", [slice(None, -1), None])
def test_damaged_files_are_named(tmp_path, folder, change):
    path = folder / "t10k-labels-idx1-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[change] if change else whole[:-1] + b"x")
    line = refusal("mnist", tmp_path)
    assert line.startswith(f"{path}: damaged")
    assert line.endswith(f"hpcfl data download mnist --root {tmp_path}")


def test_missing_files_and_pipes_are_named(tmp_path, folder):
    path = folder / "t10k-labels-idx1-ubyte"
    path.unlink()
    told = f"{path}: no such file; to fetch it: hpcfl data download mnist"
    assert told in refusal("mnist", tmp_path)
    os.mkfifo(path)
    told = f"{path}: cannot be read (not a regular file)"
    assert told in refusal("mnist", tmp_path)


class FakeArchive:
    """Replacement of a class of torchvision.datasets. It downloads ``contents`` if they
    are absent, as MNIST's does.
    """

    contents: dict[str, bytes] = {}  # noqa: RUF012 - set by the test
    error: Exception | None = None

    def __init__(self, root, download):
        assert download
        if self.error:
            raise self.error
        for file, content in self.contents.items():
            if not (root / "MNIST/raw" / file).exists():
                (root / "MNIST/raw" / file).write_bytes(content)


@pytest.fixture
def archive(folder, torchvision, monkeypatch):
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(torchvision.datasets, "MNIST", FakeArchive)
    monkeypatch.setattr(FakeArchive, "contents", contents)
    return folder


def test_download_replaces_what_is_missing_or_damaged(tmp_path, archive, monkeypatch):
    labels = archive / "train-labels-idx1-ubyte"
    labels.write_bytes(b"damaged")
    (archive / "t10k-images-idx3-ubyte").unlink()
    datasets.download("mnist", tmp_path)
    assert len(load("mnist", tmp_path).y) == 8
    monkeypatch.setitem(FakeArchive.contents, labels.name, b"an error page")
    labels.unlink()
    with expect_refusal(
        r"train-labels-idx1-ubyte: .* 13 bytes .*hpcfl data download mnist"
    ):
        datasets.download("mnist", tmp_path)


def test_no_network_is_one_line(tmp_path, archive, monkeypatch):
    error = RuntimeError("Error downloading:\nTried a mirror\n")
    monkeypatch.setattr(FakeArchive, "error", error)
    told = r"mnist could not be downloaded to .*: Error downloading: Tried a mirror$"
    with expect_refusal(told):
        datasets.download("mnist", tmp_path)
