"""CINIC-10: heterogeneity.md D5."""

import numpy as np
import pytest
from PIL import Image
from user_data import load, refusal

from hpcfl.data import partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import cinic_10


@pytest.fixture
def cinic(tmp_path, monkeypatch):
    """Write two images of each class in each part, one from each origin. Their colour
    is 10·class + part, and larger by 100 for CIFAR-10's images.
    """
    monkeypatch.setattr(cinic_10, "EACH", 2)
    for number, part in enumerate(["train", "valid", "test"]):
        for label, word in enumerate(cinic_10.CLASSES):
            folder = tmp_path / "CINIC-10" / part / word
            folder.mkdir(parents=True)
            value = 10 * label + number
            colours = {"cifar10-train-7.png": value + 100, "n02121808_1.png": value}
            for file, colour in colours.items():
                Image.new("RGB", (32, 32), (colour, 0, 0)).save(folder / file)
    return tmp_path


def reds(data):
    return data.x[:, 0, 5, 5].tolist()


def test_cinic_10_is_train_then_test(cinic):
    data = load("cinic-10", cinic)
    assert data.shape == (3, 32, 32) and data.classes == 10 and data.official_test == 20
    assert data.y.tolist() == np.repeat(np.arange(10), 2).tolist() * 2
    train = [10 * label + more for label in range(10) for more in (100, 0)]
    assert reds(data) == train + [red + 2 for red in train]
    split = partition.make(by_client(clients=2), data)
    assert split.names == ["cifar-10", "imagenet"]
    assert reds(data)[split.train[0][0]] == 100 and len(split.test[1]) == 10


def test_the_validation_part_may_be_trained_on(cinic):
    data = load("cinic-10", cinic, valid=True)
    assert len(data.y) == 60 and data.official_test == 20
    assert [red % 10 for red in reds(data)] == [0] * 20 + [1] * 20 + [2] * 20


def test_files_that_are_not_whole_are_named(cinic):
    path = cinic / "CINIC-10" / "valid" / "cat" / "n02121808_1.png"
    path.write_bytes(b"text")
    assert f"{path}: " in refusal("cinic-10", cinic)
    path.unlink()
    assert "valid/cat: " in refusal("cinic-10", cinic)
    assert "hpcfl data download cinic-10" in refusal("cinic-10", path.parent)
