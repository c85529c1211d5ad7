"""Omniglot: heterogeneity.md D10."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from user_data import load, md5, refusal

from hpcfl.data.sources import omniglot


@pytest.fixture
def drawings(tmp_path, monkeypatch):
    """Write two alphabets of two characters and one of one, in two archives, by two
    people; the upper rows of person 2 are white.
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
    checksums = {file: md5(folder / file) for file in files}
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


def test_people_are_clients(drawings):
    data = load("omniglot", drawings)
    assert data.shape == (1, 28, 28) and data.x.dtype == torch.uint8
    # 15 of 105 rows become four of 28
    white = torch.tensor([0, 1] * 5, dtype=torch.uint8) * 255
    assert data.x[:, 0, :4].equal(white[:, None, None].expand(10, 4, 28))
    assert not data.x[:, 0, 4:].any()
    assert data.y.tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 0, 0]  # Avesta, Greek, Latin
    held = data.owners.list_held(0)
    assert [client.name for client in held] == ["01", "02"]
    assert held[1].train.tolist() == [1, 3, 5, 7, 9]


def test_characters_may_be_the_classes(drawings):
    data = load("omniglot", drawings, label="character")
    assert data.classes == 5 and data.y.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 0, 0]


def test_another_number_of_images_is_refused(drawings, monkeypatch):
    monkeypatch.setattr(omniglot, "PEOPLE", 20)
    expected = (
        "must have 100 images; its files have 10, by 2 people, of 3 alphabets and 5"
    )
    assert expected in refusal("omniglot", drawings)
