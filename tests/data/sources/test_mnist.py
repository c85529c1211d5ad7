"""MNIST, KMNIST (heterogeneity.md D2), and downloaded and checked files."""

import gzip
import os
from dataclasses import replace

import numpy as np
import pytest
from refusals import expect_refusal
from user_data import idx, load, md5, refusal

from hpcfl.data import datasets
from hpcfl.data.sources import mnist
from hpcfl.experiment import config


def write(root, name, monkeypatch, convert=bytes):
    """Write five training and three test images 1×2×3 in MNIST's format."""
    folder = root / name.upper() / "raw"
    folder.mkdir(parents=True)
    images = np.arange(48, dtype=np.uint8).reshape(8, 2, 3)
    labels = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=np.uint8)
    parts = [images[:5], labels[:5], images[5:], labels[5:]]
    checksums = {}
    for file, part in zip(mnist.plugins[name].checksums, parts, strict=True):
        (folder / file).write_bytes(convert(idx(part)))
        checksums[file] = md5(folder / file)
    source = replace(mnist.plugins[name], checksums=checksums)
    monkeypatch.setitem(mnist.plugins, name, source)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return write(tmp_path, "mnist", monkeypatch)


@pytest.mark.parametrize(
    ("name", "convert"), [("mnist", bytes), ("kmnist", gzip.compress)]
)
def test_images_are_train_then_test(tmp_path, monkeypatch, name, convert):
    write(tmp_path, name, monkeypatch, convert)
    data = load(name, tmp_path)
    assert data.x.shape == (8, 1, 2, 3) and data.official_test == 3
    assert data.x.flatten().tolist() == list(range(48))
    assert data.y.tolist() == [3, 1, 4, 1, 5, 9, 2, 6] and data.classes == 10
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path))
    assert len(datasets.load(config.Data(dataset=name)).y) == 8


@pytest.mark.parametrize("change", [slice(None, -1), None])
def test_damaged_files_are_named(tmp_path, folder, change):
    path = folder / "t10k-labels-idx1-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[change] if change else whole[:-1] + b"x")
    line = refusal("mnist", tmp_path)
    assert line.startswith(f"{path}: damaged")
    assert line.endswith(f"hpcfl data download mnist --root {tmp_path}")


@pytest.mark.parametrize("name", ["mnist", "tiny-imagenet"])
def test_the_command_to_download_quotes_the_folder(tmp_path, name):
    root = tmp_path / "my data"
    command = f"hpcfl data download {name} --root '{root}'"
    assert refusal(name, root).endswith(command)


def test_missing_files_and_pipes_are_named(tmp_path, folder):
    path = folder / "t10k-labels-idx1-ubyte"
    path.unlink()
    expected = f"{path}: no such file; to fetch it: hpcfl data download mnist"
    assert expected in refusal("mnist", tmp_path)
    os.mkfifo(path)
    expected = f"{path}: cannot be read (not a regular file)"
    assert expected in refusal("mnist", tmp_path)


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


def test_download_replaces_missing_or_damaged_files(tmp_path, archive, monkeypatch):
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


def test_a_failed_download_is_reported_in_one_line(tmp_path, archive, monkeypatch):
    error = RuntimeError("Error downloading:\nTried a mirror\n")
    monkeypatch.setattr(FakeArchive, "error", error)
    expected = (
        r"mnist could not be downloaded to .*: Error downloading: Tried a mirror$"
    )
    with expect_refusal(expected):
        datasets.download("mnist", tmp_path)
