"""Public image sets (heterogeneity.md D1 to D4): small files in their true formats,
which torchvision's loaders read as well.
"""

import gzip
import hashlib
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import scipy.io

from hpcfl.data import datasets
from hpcfl.data.sources import emnist, medmnist, mnist, svhn
from hpcfl.errors import UserError
from hpcfl.experiment import config


def load(name, root, **options):
    table = {
        "dataset": name,
        "root": str(root),
        **options,
    }
    return datasets.load(
        config.parse({"method": {"name": "local"}, "data": table}).data
    )


def numbers(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def torchvisions(name, *arguments, **options):
    from hpcfl.data.vision import torchvision

    return getattr(torchvision.datasets, name)(*arguments, **options)


@pytest.fixture
def kmnist_files(tmp_path, monkeypatch):
    """Three training and two test images, compressed, and unpacked for torchvision."""
    folder = tmp_path / "KMNIST/raw"
    folder.mkdir(parents=True)
    parts = [
        numbers(0, 3, 28, 28),
        np.array([3, 0, 9], np.uint8),
        numbers(1, 2, 28, 28),
        np.array([1, 1], np.uint8),
    ]
    checksums = {}
    for file, part in zip(mnist.plugins["kmnist"].checksums, parts, strict=True):
        (folder / file).write_bytes(gzip.compress(idx(part)))
        (folder / file.removesuffix(".gz")).write_bytes(idx(part))
        checksums[file] = md5(folder / file)
    source = replace(mnist.plugins["kmnist"], checksums=checksums)
    monkeypatch.setitem(mnist.plugins, "kmnist", source)
    return tmp_path


@pytest.mark.slow
def test_d2_kmnist_is_as_torchvision_reads_it(kmnist_files):
    data = load("kmnist", kmnist_files)
    assert data.official_test == 2 and data.classes == 10
    for train, span in ((True, slice(0, 3)), (False, slice(3, 5))):
        theirs = torchvisions("KMNIST", kmnist_files, train=train)
        assert data.x[span, 0].equal(theirs.data)
        assert data.y[span].equal(theirs.targets)


def test_d2_the_compressed_files_are_those_that_are_read(kmnist_files):
    for path in (kmnist_files / "KMNIST/raw").iterdir():
        if path.suffix != ".gz":
            path.unlink()
    assert load("kmnist", kmnist_files).y.tolist() == [3, 0, 9, 1, 1]


@pytest.fixture
def emnist_files(tmp_path, monkeypatch):
    """``letters`` of three training images and one test image, ``digits`` of two and
    one, in the archive, and unpacked for torchvision.
    """
    folder = tmp_path / "EMNIST/raw"
    folder.mkdir(parents=True)
    sets = {
        ("letters", "train"): (numbers(0, 3, 28, 28), [1, 26, 2]),
        ("letters", "test"): (numbers(1, 1, 28, 28), [26]),
        ("digits", "train"): (numbers(2, 2, 28, 28), [9, 0]),
        ("digits", "test"): (numbers(3, 1, 28, 28), [5]),
    }
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for (split, part), (images, labels) in sets.items():
            kinds = {
                "images-idx3": images,
                "labels-idx1": np.array(labels, np.uint8),
            }
            for kind, array in kinds.items():
                file = f"emnist-{split}-{part}-{kind}-ubyte"
                (folder / file).write_bytes(idx(array))
                archive.writestr(f"gzip/{file}.gz", gzip.compress(idx(array)))
    source = replace(emnist.plugin, checksums={"gzip.zip": md5(folder / "gzip.zip")})
    monkeypatch.setattr(emnist, "plugin", source)
    known = {
        "letters": emnist.SPLITS["letters"]._replace(train=3, test=1),
        "digits": emnist.SPLITS["digits"]._replace(train=2, test=1),
    }
    monkeypatch.setattr(emnist, "SPLITS", known)
    return tmp_path


@pytest.mark.slow
def test_d1_emnist_is_as_torchvision_reads_it_but_upright(emnist_files):
    data = load("emnist", emnist_files, split="letters")
    assert data.x.shape == (4, 1, 28, 28) and data.x.is_contiguous()
    assert data.official_test == 1 and data.classes == 26
    for train, span in ((True, slice(0, 3)), (False, slice(3, 4))):
        theirs = torchvisions("EMNIST", emnist_files, "letters", train=train)
        assert data.x[span, 0].equal(theirs.data.transpose(1, 2))
        assert data.y[span].equal(theirs.targets - 1)  # theirs has a class "N/A"


def test_d1_a_split_is_a_data_set(emnist_files):
    assert load("emnist", emnist_files, split="digits").y.tolist() == [9, 0, 5]
    with pytest.raises(UserError, match=r"data\.split = 'letter': must be 'byclass', "):
        load("emnist", emnist_files, split="letter")
    with pytest.raises(
        UserError, match=r"unknown key 'data\.spilt'; did you mean 'split'"
    ):
        load("emnist", emnist_files, spilt="letters")


def test_d1_sizes_are_those_of_the_paper(emnist_files, monkeypatch):
    monkeypatch.undo()
    assert [known.train for known in emnist.SPLITS.values()] == [
        697_932,
        697_932,
        112_800,
        124_800,
        240_000,
        60_000,
    ]


def test_d1_another_size_is_told(emnist_files, monkeypatch):
    known = {"letters": emnist.SPLITS["letters"]._replace(train=4)}
    monkeypatch.setattr(emnist, "SPLITS", known)
    with pytest.raises(
        UserError, match=r"must have 4 \+ 1 samples; its files have 3 \+ 1"
    ):
        load("emnist", emnist_files, split="letters")


@pytest.fixture
def svhn_files(tmp_path, monkeypatch):
    """Three training images, two test images and two further ones."""
    sizes = {
        svhn.TRAIN: 3,
        svhn.TEST: 2,
        svhn.EXTRA: 2,
    }
    for seed, (file, size) in enumerate(sizes.items()):
        labels = np.array([10, 1, 9][:size], np.uint8)[:, None]
        arrays = {"X": numbers(seed, 32, 32, 3, size), "y": labels}
        scipy.io.savemat(tmp_path / file, arrays, do_compression=True)
    checksums = {file: md5(tmp_path / file) for file in (svhn.TRAIN, svhn.TEST)}
    further = {svhn.EXTRA: md5(tmp_path / svhn.EXTRA)}
    source = replace(svhn.plugin, checksums=checksums, further=further)
    monkeypatch.setattr(svhn, "plugin", source)
    monkeypatch.setattr(svhn, "SIZES", sizes)
    return tmp_path


@pytest.mark.slow
def test_d3_svhn_is_as_torchvision_reads_it(svhn_files, monkeypatch):
    from hpcfl.data.vision import torchvision

    known = {**svhn.plugin.checksums, **svhn.plugin.further}
    split_list = {
        file.partition("_")[0]: ["", file, checksum] for file, checksum in known.items()
    }
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", split_list)
    data = load("svhn", svhn_files, extra=True)
    assert data.official_test == 2 and data.x.is_contiguous()
    spans = {
        "train": slice(0, 3),
        "extra": slice(3, 5),
        "test": slice(5, 7),
    }
    for split, span in spans.items():
        theirs = torchvisions("SVHN", svhn_files, split)
        assert np.array_equal(data.x[span].numpy(), theirs.data)
        assert np.array_equal(data.y[span].numpy(), theirs.labels)


def test_d3_the_further_images_are_read_where_they_are_asked_for(svhn_files):
    data = load("svhn", svhn_files)
    assert data.y.tolist() == [0, 1, 9, 0, 1]  # 10 is the digit 0
    assert data.x.shape == (5, 3, 32, 32)
    (svhn_files / svhn.EXTRA).unlink()
    assert len(load("svhn", svhn_files).y) == 5
    with pytest.raises(
        UserError,
        match=r"extra_32x32\.mat: no such file; it is http://.*/extra_32x32\.mat$",
    ):
        load("svhn", svhn_files, extra=True)


def medmnist_files(root, name, monkeypatch, side=28):
    """A set of MedMNIST's of three training, one validation and two test images, as
    their package writes it; returns the images.
    """
    known = medmnist.plugins[name].known
    shape = (side, side, 3) if known.channels == 3 else (side, side)
    images = numbers(5, 6, *shape)
    labels = np.array([[0], [1], [0], [1], [1], [0]], np.uint8)
    spans = {
        "train": slice(0, 3),
        "val": slice(3, 4),
        "test": slice(4, 6),
    }
    arrays = {f"{part}_images": images[span] for part, span in spans.items()}
    arrays |= {f"{part}_labels": labels[span] for part, span in spans.items()}
    file = f"{name}.npz" if side == 28 else f"{name}_{side}.npz"
    np.savez_compressed(root / file, **arrays)
    checksum = {"md5" if side == 28 else "md5_64": md5(root / file)}
    known = known._replace(train=3, test=2, **checksum)
    source = medmnist.make_source(name, known)
    monkeypatch.setitem(medmnist.plugins, name, source)
    return images


@pytest.mark.parametrize("name", medmnist.plugins)
def test_d4_each_set_of_medmnist_leaves_its_validation_part_out(
    tmp_path, monkeypatch, name
):
    images = medmnist_files(tmp_path, name, monkeypatch)
    data = load(name, tmp_path)
    assert data.y.tolist() == [0, 1, 0, 1, 0] and data.official_test == 2
    assert data.classes == medmnist.plugins[name].known.classes
    kept = np.delete(images, 3, axis=0)
    expected = kept.transpose(0, 3, 1, 2) if kept.ndim == 4 else kept[:, None]
    assert np.array_equal(data.x.numpy(), expected) and data.x.is_contiguous()


def test_d4_ten_sets_are_there_and_no_other():
    named = {name for name in datasets.names() if name.endswith("mnist")}
    others = {"mnist", "fashion-mnist", "kmnist", "emnist"}
    assert named - others == set(medmnist.plugins) and len(medmnist.plugins) == 10


def test_d4_images_of_64_pixels(tmp_path, monkeypatch):
    images = medmnist_files(tmp_path, "bloodmnist", monkeypatch, side=64)
    data = load("bloodmnist", tmp_path, size=64)
    assert data.shape == (3, 64, 64) and data.classes == 8
    assert np.array_equal(data.x[0].numpy(), images[0].transpose(2, 0, 1))
    with pytest.raises(UserError, match=r"data\.size = 32: must be 28 or 64"):
        load("bloodmnist", tmp_path, size=32)
    (tmp_path / "bloodmnist_64.npz").unlink()
    told = r"bloodmnist_64\.npz: no such file; it is https://zenodo\.org/.*_64\.npz$"
    with pytest.raises(UserError, match=told):
        load("bloodmnist", tmp_path, size=64)


def test_d4_another_size_is_told(tmp_path, monkeypatch):
    medmnist_files(tmp_path, "octmnist", monkeypatch)
    source = medmnist.plugins["octmnist"]
    other = replace(source, known=source.known._replace(test=1000))
    with pytest.raises(UserError, match=r"3 \+ 1,000 samples; its files have 3 \+ 2"):
        other.read("octmnist", tmp_path)
