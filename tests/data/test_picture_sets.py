"""Sets of many small pictures (heterogeneity.md D5, D9 and D10): CINIC-10, Omniglot,
Camelyon17.
"""

import hashlib
import io
import zipfile
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import camelyon17, cinic_10, omniglot
from hpcfl.errors import UserError
from hpcfl.experiment import config


def load(name, root, **options):
    return datasets.load(config.Data(dataset=name, root=str(root), options=options))


@pytest.fixture
def cinic(tmp_path, monkeypatch):
    """Two images of each class in each part, one from each origin; their colour is
    10·class + part, that of CIFAR-10's images 100 more.
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


def test_d5_cinic_10_is_train_then_test(cinic):
    data = load("cinic-10", cinic)
    assert data.shape == (3, 32, 32) and data.classes == 10 and data.official_test == 20
    assert data.y.tolist() == np.repeat(np.arange(10), 2).tolist() * 2
    train = [10 * label + more for label in range(10) for more in (100, 0)]
    assert reds(data) == train + [red + 2 for red in train]
    split = partition.make(by_client(clients=2), data)
    assert split.names == ["cifar-10", "imagenet"]
    assert reds(data)[split.train[0][0]] == 100 and len(split.test[1]) == 10


def test_d5_the_validation_part_may_be_trained_on(cinic):
    data = load("cinic-10", cinic, valid=True)
    assert len(data.y) == 60 and data.official_test == 20
    assert [red % 10 for red in reds(data)] == [0] * 20 + [1] * 20 + [2] * 20


def test_d5_images_are_decoded_once_where_they_are_downloaded(cinic, monkeypatch):
    first = load("cinic-10", cinic)
    datasets.download("cinic-10", cinic)
    monkeypatch.setattr(cinic_10, "_decode", None)
    assert load("cinic-10", cinic).x.equal(first.x)
    assert load("cinic-10", cinic, valid=True).official_test == 20


def test_d5_files_that_are_not_whole_are_named(cinic, tmp_path):
    folder = tmp_path / "CINIC-10" / "valid" / "cat"
    (folder / "n02121808_1.png").write_bytes(b"text")
    with pytest.raises(
        UserError, match=r"n02121808_1\.png: cannot be read as an image"
    ):
        load("cinic-10", cinic)
    (folder / "n02121808_1.png").unlink()
    with pytest.raises(
        UserError, match=r"valid/cat: must hold 2 \.png files; it holds 1"
    ):
        load("cinic-10", cinic)
    with pytest.raises(
        UserError, match=r"CINIC-10: no such folder; to fetch it: hpcfl"
    ):
        load("cinic-10", tmp_path / "CINIC-10")


@pytest.fixture
def drawings(tmp_path, monkeypatch):
    """Two alphabets of two characters and one of one, in two archives, by two people:
    the upper rows of person 2 are white.
    """
    files = {
        "images_background.zip": [
            ("Greek", 1),
            ("Greek", 2),
            ("Latin", 1),
            ("Latin", 2),
        ],
        "images_evaluation.zip": [("Avesta", 1)],
    }
    folder = tmp_path / "omniglot-py"
    folder.mkdir()
    number = 0
    for file, characters in files.items():
        with zipfile.ZipFile(folder / file, "w") as archive:
            archive.writestr(f"{file[:-4]}/", b"")
            archive.writestr("__MACOSX/._Greek", b"x")
            for alphabet, character in characters:
                number += 1
                for person in (2, 1):
                    pixels = np.zeros((105, 105), bool)
                    pixels[:15] = person == 2
                    png = io.BytesIO()
                    Image.fromarray(pixels).save(png, format="PNG")
                    place = f"{file[:-4]}/{alphabet}/character{character:02}"
                    archive.writestr(
                        f"{place}/{number:04}_{person:02}.png", png.getvalue()
                    )
    checksums = {
        file: hashlib.md5((folder / file).read_bytes()).hexdigest() for file in files
    }
    monkeypatch.setattr(
        omniglot, "plugin", replace(omniglot.plugin, checksums=checksums)
    )
    for name, size in {
        "PEOPLE": 2,
        "ALPHABETS": 3,
        "CHARACTERS": 5,
    }.items():
        monkeypatch.setattr(omniglot, name, size)
    return tmp_path


def test_d10_people_are_clients(drawings):
    data = load("omniglot", drawings)
    assert data.shape == (1, 28, 28) and data.x.dtype == torch.uint8
    # 15 of 105 rows are four of 28
    white = torch.tensor([0, 1] * 5, dtype=torch.uint8) * 255
    assert data.x[:, 0, :4].equal(white[:, None, None].expand(10, 4, 28))
    assert not data.x[:, 0, 4:].any()
    assert data.y.tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 0, 0]  # Avesta, Greek, Latin
    held = data.owners.held(0)
    assert [client.name for client in held] == ["01", "02"]
    assert held[1].train.tolist() == [1, 3, 5, 7, 9]


def test_d10_characters_may_be_the_classes(drawings):
    data = load("omniglot", drawings, label="character")
    assert data.classes == 5 and data.y.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 0, 0]


def test_d10_another_number_of_images_is_told(drawings, monkeypatch):
    monkeypatch.setattr(omniglot, "PEOPLE", 20)
    told = (
        r"must have 100 images; its files have 10, by 2 people, of 3 alphabets and 5 ch"
    )
    with pytest.raises(UserError, match=told):
        load("omniglot", drawings)


@pytest.fixture
def patches(tmp_path, monkeypatch):
    """Three patches of two hospitals and three slides; returns the metadata. The left
    third of a patch has its number as its red, the rest is black.
    """
    sizes = {
        "PATCHES": 3,
        "HOSPITALS": 2,
        "SLIDES": 3,
    }
    for name, size in sizes.items():
        monkeypatch.setattr(camelyon17, name, size)
    table = pandas.DataFrame(
        {
            "patient": ["004", "017", "017"],
            "node": [4, 1, 1],
            "x_coord": [3328, 10, 20],
            "y_coord": [21792, 30, 40],
            "tumor": [1, 0, 1],
            "slide": [0, 20, 7],
            "center": [4, 0, 4],
            "split": [0, 1, 0],
        }
    )
    folder = tmp_path / "camelyon17_v1.0"
    for number, row in enumerate(table.itertuples(), start=1):
        place = f"patient_{row.patient}_node_{row.node}"
        file = f"patch_{place}_x_{row.x_coord}_y_{row.y_coord}.png"
        (folder / "patches" / place).mkdir(parents=True, exist_ok=True)
        pixels = np.zeros((96, 96, 4), np.uint8)
        pixels[:, :32, 0] = 10 * number
        pixels[:, :, 3] = 255
        Image.fromarray(pixels).save(folder / "patches" / place / file)
    table.to_csv(folder / "metadata.csv")
    return table


def test_d9_hospitals_are_clients(tmp_path, patches):
    data = load("camelyon17", tmp_path)
    assert data.shape == (3, 32, 32) and data.classes == 2 and data.official_test == 0
    assert data.y.tolist() == [1, 0, 1]
    # 32 of 96 columns are 10 whole ones of 32 and two thirds of the next
    assert data.x[:, 0, 0, 9:12].tolist() == [[10, 7, 0], [20, 13, 0], [30, 20, 0]]
    assert not data.x[:, 1:].any()
    assert data.owners.names == ("0", "4") and data.owners.of.tolist() == [1, 0, 1]
    slides = load("camelyon17", tmp_path, clients="slide").owners
    assert slides.names == ("0", "7", "20") and slides.of.tolist() == [0, 2, 1]


def test_d9_images_that_were_fetched_are_decoded_once(tmp_path, patches, monkeypatch):
    first = load("camelyon17", tmp_path)
    datasets.download("camelyon17", tmp_path)
    monkeypatch.setattr(camelyon17, "_decode", None)
    assert load("camelyon17", tmp_path).x.equal(first.x)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("patient", "../4", r"row 2: patient = '\.\./4' is no such number"),
        ("tumor", 2, "row 2: tumor = '2' is no such number"),
        ("slide", "", "row 2: slide = '' is no such number"),
        ("center", 4, r"must name 3 patches of 2 hospitals .*; it names 3 of 1 and 3"),
    ],
)
def test_d9_metadata_that_is_wrong_is_told(tmp_path, patches, column, value, told):
    path = tmp_path / "camelyon17_v1.0" / "metadata.csv"
    wrong = patches.astype(object)
    wrong.loc[1, column] = value
    wrong.to_csv(path)
    with pytest.raises(UserError, match=f"^{path}: {told}"):
        load("camelyon17", tmp_path)


def test_d9_files_that_are_missing_are_named(tmp_path, patches):
    path = tmp_path / "camelyon17_v1.0" / "metadata.csv"
    patches.drop(columns="slide").to_csv(path)
    with pytest.raises(UserError, match=r"metadata\.csv: cannot be read as csv"):
        load("camelyon17", tmp_path)
    path.unlink()
    with pytest.raises(
        UserError, match=r"no such file; hpcfl datasets camelyon17 says"
    ):
        load("camelyon17", tmp_path)
