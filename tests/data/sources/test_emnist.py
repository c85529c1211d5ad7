"""EMNIST: heterogeneity.md D1, as torchvision reads it."""

import gzip
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from user_data import idx, load, md5, numbers, refusal

from hpcfl.data.sources import emnist


@pytest.fixture
def emnist_files(tmp_path, monkeypatch):
    """Write ``letters`` with three training images and one test image, and ``digits``
    with two and one, in the archive, and unpacked for torchvision.
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
def test_emnist_is_as_torchvision_reads_it_but_upright(emnist_files, torchvision):
    data = load("emnist", emnist_files, split="letters")
    assert data.x.shape == (4, 1, 28, 28) and data.x.is_contiguous()
    assert data.official_test == 1 and data.classes == 26
    for train, span in ((True, slice(0, 3)), (False, slice(3, 4))):
        theirs = torchvision.datasets.EMNIST(emnist_files, "letters", train=train)
        assert data.x[span, 0].equal(theirs.data.transpose(1, 2))
        assert data.y[span].equal(theirs.targets - 1)  # torchvision has a class "N/A"


def test_a_split_is_a_data_set(emnist_files):
    assert load("emnist", emnist_files, split="digits").y.tolist() == [9, 0, 5]
    assert "data.split = 'letter': " in refusal("emnist", emnist_files, split="letter")
    assert "'data.spilt'; did you mean 'split'" in refusal(
        "emnist", emnist_files, spilt="letters"
    )


def test_another_size_is_refused(emnist_files, monkeypatch):
    known = {"letters": emnist.SPLITS["letters"]._replace(train=4)}
    monkeypatch.setattr(emnist, "SPLITS", known)
    assert "3 + 1" in refusal("emnist", emnist_files, split="letters")


def test_sizes_are_those_of_the_paper():
    sizes = [known.train for known in emnist.SPLITS.values()]
    assert sizes == [697_932, 697_932, 112_800, 124_800, 240_000, 60_000]
