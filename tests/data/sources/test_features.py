"""Texts and categories of tables as numbers, and identifiers among them."""

import numpy as np
import pandas as pd
import pytest
from user_data import load, refusal

from hpcfl.data import datasets
from hpcfl.data.sources import features
from hpcfl.data.sources.features import looks_like_identifier
from hpcfl.experiment import config


@pytest.fixture
def patients(tmp_path):
    """Return three training patients and one test patient of another hospital."""
    table = {
        "age": [20, 40, 60, 80],
        "same": 7,
        "hospital": ["b", "a", "b", "c"],
        "label": [0, 1, 0, 1],
        "split": ["train", "train", "train", "test"],
    }
    pd.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_categories_are_those_of_the_training_rows(patients):
    data = load("csv", patients, encode="one-hot", features=["age", "hospital"])
    assert data.description.features == ("age", "hospital=a", "hospital=b")
    assert data.x.tolist() == [[20, 0, 1], [40, 1, 0], [60, 0, 1], [80, 0, 0]]
    assert "categories c, " in data.notes[0]
    alone = load("csv", patients, encode="one-hot", features=["hospital"])
    assert alone.x.equal(data.x[:, 1:]) and alone.vocabulary is None


def test_categories_of_numbers_are_encoded_where_they_are_declared(tmp_path):
    table = pd.DataFrame({"grade": [3, 1, 3], "age": [20, 40, 60], "label": [0, 1, 0]})
    table["grade"] = table["grade"].astype("category")
    table.to_parquet(tmp_path / "t.parquet")
    data = load("parquet", tmp_path / "t.parquet", encode="one-hot")
    assert data.x.tolist() == [[0, 1, 20], [1, 0, 40], [0, 1, 60]]
    assert data.description.features == ("grade=1", "grade=3", "age")
    data = load("parquet", tmp_path / "t.parquet")
    assert data.x.tolist() == [[3, 20], [1, 40], [3, 60]]
    assert "categories" in data.notes[0]


def test_a_column_of_texts_is_refused_with_both_keys(patients):
    line = refusal("csv", patients)
    assert "data.encode = 'one-hot'" in line and "data.normalise = 'statistics'" in line


def test_too_many_categories_are_refused(patients, monkeypatch):
    monkeypatch.setattr(features, "MOST_CATEGORIES", 1)
    assert "'hospital' has 2 " in refusal("csv", patients, encode="one-hot")


def test_numbers_are_standardised_by_the_samples_that_clients_train_on(patients):
    data = load("csv", patients, encode="one-hot", normalise="statistics")
    keys = config.Data(normalise="statistics")
    data = datasets.standardise(data, keys, [np.array([0, 2]), np.array([1])])
    values = data.normalise(data.x).T.tolist()
    columns = dict(zip(data.description.features, values, strict=True))
    ages = np.array([20, 40, 60, 80])
    expected = (ages - ages[:3].mean()) / ages[:3].std()
    assert columns["age"] == pytest.approx(expected, abs=1e-6)
    assert columns["hospital=b"] == [1, 0, 1, 0]  # categories stay 0 and 1
    assert columns["same"] == [0, 0, 0, 0]


def test_token_ids_are_not_standardised(patients):
    keys = {"features": ["hospital"], "normalise": "statistics"}
    assert "use 'half'" in refusal("csv", patients, **keys)


def test_numbers_that_float32_cannot_distinguish_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    table = pd.DataFrame({"time": 1_700_000_000 + np.arange(12) * 7 % 11, "a": 0.5})
    table["label"] = 0
    table.to_csv(path, index=False)
    assert "'time' has 11 " in refusal("csv", path)
    table["time"] = np.arange(12) * 10**8 % 7
    table.to_csv(path, index=False)
    assert load("csv", path).shape == (2,)


RANDOM = np.random.default_rng(0)
WORDS = np.array([f"n{number}" for number in range(12)], object)


@pytest.mark.parametrize(
    ("name", "values", "files", "expected"),
    [
        ("x", np.arange(20)[::-1], (), True),
        ("row", np.arange(20.0), (), True),
        ("row", np.tile(np.arange(10), 2), (10, 10), True),
        ("row", np.tile(np.arange(10), 2), (), False),
        ("x", np.arange(20) ** 2, (), True),
        ("age", RANDOM.integers(18, 90, 300), (), False),
        ("age", np.array([30, 41, 52]), (), False),
        ("patientID", np.array([7, 3, 7, 5]), (), True),
        ("has_id", np.array([0, 1, 1, 0]), (), False),
        ("id", RANDOM.random(30), (), False),
        ("index", np.array([4, 4, 1, 2]), (), True),
        ("refractive_index", np.array([4, 4, 1, 2]), (), False),
        ("patient", RANDOM.permutation(900)[:30], (), True),
        ("patient", RANDOM.integers(0, 9, 30), (), False),
        ("name", WORDS, (), True),
        ("text", "a " + WORDS, (), False),
    ],
)
def test_a_column_that_numbers_rows_or_persons_is_an_identifier(
    name, values, files, expected
):
    assert looks_like_identifier(name, values, files) == expected
