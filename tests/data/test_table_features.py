"""Texts and categories of tables as numbers, and standardised columns."""

import numpy as np
import pandas as pd
import pytest
import torch

from hpcfl import models
from hpcfl.data import datasets
from hpcfl.errors import UserError
from hpcfl.experiment import config

PARTS = ["train", "train", "train", "test"]


def section(path, **options):
    kind = path.suffix.removeprefix(".")
    data = {"dataset": kind, "file": str(path), **options}
    return config.parse({"method": {"name": "local"}, "data": data}).data


def patients(path, **columns):
    """Three patients to train on and one to test on, of another hospital."""
    table = {
        "age": [20, 40, 60, 80],
        "hospital": ["b", "a", "b", "c"],
        "label": [0, 1, 0, 1],
        "split": PARTS,
    }
    pd.DataFrame(table | columns).to_csv(path, index=False)
    return path


def test_categories_are_those_of_the_training_rows(tmp_path):
    path = patients(tmp_path / "t.csv")
    data = datasets.load(section(path, encode="one-hot"))
    assert data.description.features == ("age", "hospital=a", "hospital=b")
    assert data.x.tolist() == [[20, 0, 1], [40, 1, 0], [60, 0, 1], [80, 0, 0]]
    assert "no training row has the categories 'c'" in data.notes[0]


def test_a_lone_column_of_categories_is_encoded(tmp_path):
    path = patients(tmp_path / "t.csv")
    data = datasets.load(section(path, encode="one-hot", features=["hospital"]))
    assert data.x.tolist() == [[0, 1], [1, 0], [0, 1], [0, 0]]
    assert data.vocabulary is None


def test_categories_of_numbers_are_encoded_where_they_are_declared(tmp_path):
    table = pd.DataFrame({"grade": [3, 1, 3], "age": [20, 40, 60], "label": [0, 1, 0]})
    table["grade"] = table["grade"].astype("category")
    table.to_parquet(tmp_path / "t.parquet")
    data = datasets.load(section(tmp_path / "t.parquet", encode="one-hot"))
    assert data.x.tolist() == [[0, 1, 20], [1, 0, 40], [0, 1, 60]]
    assert data.description.features == ("grade=1", "grade=3", "age")
    data = datasets.load(section(tmp_path / "t.parquet"))
    assert data.x.tolist() == [[3, 20], [1, 40], [3, 60]]
    assert "holds categories, which are used by number" in data.notes[0]


def test_a_column_of_texts_is_refused_with_both_keys(tmp_path):
    path = patients(tmp_path / "t.csv")
    told = r"'hospital' .*data\.encode = 'one-hot'.*data\.normalise = 'statistics'"
    for keys in ({}, {"features": ["age", "hospital"]}):
        with pytest.raises(UserError, match=told):
            datasets.load(section(path, **keys))


def test_too_many_categories_are_refused(tmp_path, monkeypatch):
    from hpcfl.data.sources import _features

    monkeypatch.setattr(_features, "MOST_CATEGORIES", 1)
    path = patients(tmp_path / "t.csv")
    with pytest.raises(UserError, match="'hospital' has 2 categories, at most 1 are"):
        datasets.load(section(path, encode="one-hot"))


def test_numbers_are_standardised_by_the_samples_that_clients_train_on(tmp_path):
    path = patients(tmp_path / "t.csv", same=[7, 7, 7, 7], weight=[1.5, 2.5, 4.5, 9.5])
    keys = section(path, encode="one-hot", normalise="statistics")
    data = datasets.load(keys)
    data = datasets.standardised(data, keys, [np.array([0, 2]), np.array([1])])
    weight = np.array([1.5, 2.5, 4.5])
    expected = (np.array([*weight, 9.5]) - weight.mean()) / weight.std()
    columns = dict(
        zip(data.description.features, data.normalise(data.x).T, strict=True)
    )
    assert columns["weight"].numpy() == pytest.approx(expected, abs=1e-6)
    assert columns["age"].tolist() == pytest.approx(
        [-1.224745, 0, 1.224745, 2.449490], abs=1e-6
    )
    assert columns["hospital=b"].tolist() == [1, 0, 1, 0]  # categories stay 0 and 1
    assert columns["same"].tolist() == [0, 0, 0, 0]


def test_test_samples_that_a_partition_cuts_are_not_in_the_statistics(tmp_path):
    from hpcfl.communication.communicator import OneProcess
    from hpcfl.simulation.prepare import prepare

    generator = np.random.default_rng(0)
    x = generator.random((40, 3)).astype(np.float32)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(40) % 2, client=np.arange(40) % 4)
    keys = {
        "method": {"name": "local"},
        "data": {
            "dataset": "npz",
            "file": str(tmp_path / "t.npz"),
            "normalise": "statistics",
        },
        "partition": {"scheme": "by-client", "clients": 3},
        "newcomers": {"clients": 1},
    }
    prepared = prepare(config.parse(keys), OneProcess())
    trained = x[np.concatenate(prepared.split.train[:3])]
    normalise = prepared.resources.samples.normalise
    assert normalise.mean == pytest.approx(trained.mean(axis=0), abs=1e-6)
    assert normalise.std == pytest.approx(trained.std(axis=0), abs=1e-6)


def test_token_ids_are_not_standardised(tmp_path):
    path = patients(tmp_path / "t.csv")
    keys = section(path, features=["hospital"], normalise="statistics")
    with pytest.raises(UserError, match="are token ids; use 'half'"):
        datasets.load(keys)


def test_statistics_of_images_are_those_of_channels():
    keys = config.Data(normalise="statistics")
    digits = datasets.load(keys)
    assert digits.std == (0.5,)
    held = np.arange(100)
    data = datasets.standardised(digits, keys, [held])
    images = data.normalise(data.x[:100])
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_a_model_of_numbers_refuses_token_ids():
    mlp = config.parse({"method": {"name": "local"}}).model
    with pytest.raises(
        UserError, match=r"'mlp' does not take token ids.*save numbers as"
    ):
        models.build(mlp, (64,), 10, vocabulary=17)


def test_encode_left_out_is_no_part_of_the_identity(tmp_path):
    path = patients(tmp_path / "t.csv")
    table = {"method": {"name": "local"}, "data": {"dataset": "csv", "file": str(path)}}
    without = config.parse(table).resolved()
    stored = {**without, "data": {**without["data"]}}
    del stored["data"]["encode"]
    assert config.fingerprint(stored) == config.fingerprint(without)
    table["data"]["encode"] = "one-hot"
    assert config.fingerprint(config.parse(table).resolved()) != config.fingerprint(
        stored
    )


def test_npz_files_name_the_place_of_what_is_not_finite(tmp_path):
    x = np.zeros((3, 4))
    x[1, 2] = np.nan
    np.savez(tmp_path / "t.npz", x=x, y=np.zeros(3, int))
    with pytest.raises(UserError, match=r"x\[1, 2\] is nan"):
        datasets.load(section(tmp_path / "t.npz"))


def test_npz_arrays_that_are_not_read_are_noted(tmp_path):
    x = np.zeros((3, 4), np.float32)
    np.savez(tmp_path / "t.npz", x=x, y=np.zeros(3, int), x_test=x)
    data = datasets.load(section(tmp_path / "t.npz"))
    assert "'x_test' are not read" in data.notes[0]
    assert torch.equal(data.x, torch.zeros(3, 4))


def test_a_failing_model_of_a_user_is_named_with_token_ids(tmp_path):
    from hpcfl.communication.communicator import OneProcess
    from hpcfl.simulation.prepare import prepare

    x = np.ones((8, 3), int)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(8) % 2)
    keys = {
        "method": {"name": "local"},
        "data": {"dataset": "npz", "file": str(tmp_path / "t.npz")},
        "model": {"name": "tiny:zero_row"},
        "partition": {"scheme": "iid", "clients": 2},
    }
    with pytest.raises(UserError, match="2×3 token ids"):
        prepare(config.parse(keys), OneProcess())
