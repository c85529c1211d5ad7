"""Camelyon17-WILDS: heterogeneity.md D9."""

import numpy as np
import pandas
import pytest
from PIL import Image
from user_data import load, refusal

from hpcfl.data.sources import camelyon17


@pytest.fixture
def patches(tmp_path, monkeypatch):
    """Write three patches of two hospitals and three slides, and return the metadata.
    The red channel of a patch's left third is its number, the rest is black.
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


def test_hospitals_are_clients(tmp_path, patches):
    data = load("camelyon17", tmp_path)
    assert data.shape == (3, 32, 32) and data.classes == 2 and data.official_test == 0
    assert data.y.tolist() == [1, 0, 1]
    # 32 of 96 columns are 10 whole columns of 32 and two thirds of the next
    assert data.x[:, 0, 0, 9:12].tolist() == [[10, 7, 0], [20, 13, 0], [30, 20, 0]]
    assert not data.x[:, 1:].any()
    assert data.owners.names == ("0", "4") and data.owners.numbers.tolist() == [1, 0, 1]
    slides = load("camelyon17", tmp_path, clients="slide").owners
    assert slides.names == ("0", "7", "20") and slides.numbers.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("patient", "../4", "row 2: patient = '../4' "),
        ("tumor", 2, "row 2: tumor = '2' "),
        ("slide", "", "row 2: slide = '' "),
        ("center", 4, "3 of 1 and 3"),
    ],
)
def test_wrong_metadata_is_refused(tmp_path, patches, column, value, expected):
    path = tmp_path / "camelyon17_v1.0" / "metadata.csv"
    wrong = patches.astype(object)
    wrong.loc[1, column] = value
    wrong.to_csv(path)
    line = refusal("camelyon17", tmp_path)
    assert line.startswith(f"{path}: ") and expected in line


def test_files_that_are_missing_are_named(tmp_path, patches):
    path = tmp_path / "camelyon17_v1.0" / "metadata.csv"
    patches.drop(columns="slide").to_csv(path)
    assert "metadata.csv: " in refusal("camelyon17", tmp_path)
    path.unlink()
    assert "hpcfl datasets camelyon17 " in refusal("camelyon17", tmp_path)
