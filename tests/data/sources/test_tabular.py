"""Columns of tables: features, labels, clients and parts."""

import numpy as np
import pandas as pd
import pytest
from user_data import load, refusal

ROWS = 12


def save(path, **columns):
    """Write rows of two features, a label and a client as CSV or Parquet."""
    generator = np.random.default_rng(3)
    table = {
        "a": generator.random(ROWS),
        "b": generator.integers(0, 4, ROWS),
        "label": np.arange(ROWS) % 2,
        "client": np.arange(ROWS) % 3,
    }
    frame = pd.DataFrame(table | columns)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.sort_values("a").to_parquet(path)
    return path


def test_a_column_named_in_features_is_always_used(tmp_path):
    path = save(tmp_path / "t.parquet", patient_id=np.arange(ROWS))
    data = load("parquet", path)
    assert data.description.features == ("a", "b") and len(data.notes) == 2
    assert "__index_level_0__ " in data.notes[0]
    assert "patient_id " in data.notes[1]
    named = ["patient_id", "__index_level_0__"]
    data = load("parquet", path, features=named)
    assert data.description.features == tuple(named) and data.notes == ()


def test_other_columns_of_labels_and_clients_are_no_features(tmp_path):
    """Otherwise, if keys name other columns, features would reveal the class or the
    client.
    """
    table = {"hospital": np.arange(ROWS) % 2, "disease": np.arange(ROWS) % 3}
    path = save(tmp_path / "t.csv", Split=0.5, **table)
    data = load("csv", path, label="disease", client="hospital")
    assert data.description.features == ("a", "b")
    assert "label, client, Split " in data.notes[0]


def test_a_lone_column_of_different_words_is_a_text(tmp_path):
    path = tmp_path / "t.csv"
    names = pd.DataFrame({"name": [f"n{n}" for n in range(ROWS)], "label": 0})
    names.to_csv(path, index=False)
    assert load("csv", path).vocabulary == ROWS + 1


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"label": "lable"}, "data.label = 'lable': "),
        ({"client": "user"}, "data.client = 'user': "),
        ({"features": ["y"]}, "data.features = 'y': "),
        ({"features": ["a", "a"]}, "'a' occurs 2 "),
        ({"features": ["label"]}, "'label' is the column of labels"),
        ({"features": []}, "data.features"),
        ({"client": "label"}, "'label' occurs 2 "),
        ({"label": "a"}, "'a' holds float64 [12]; "),
        ({"split": "b"}, "0, 1, 2, 3"),
    ],
)
def test_keys_that_name_no_such_column_are_refused(tmp_path, keys, expected):
    assert expected in refusal("csv", save(tmp_path / "t.csv"), **keys)


def test_labels_that_are_no_class_numbers_are_refused(tmp_path):
    for label, expected in (
        (-1, "int64 from -1"),
        (10**7, "10,000,001 classes"),
    ):
        path = save(tmp_path / "t.csv", label=[0] * 11 + [label])
        assert expected in refusal("csv", path)
    path.write_text("label\n0\n")
    assert "set data.features" in refusal("csv", path)


def test_classes_of_dropped_rows_are_noted(tmp_path):
    """The model has an output for "owl", although no sample has this class."""
    path = tmp_path / "t.csv"
    path.write_text("x,label,split\n0.5,cat,train\n1.5,dog,test\n2.5,owl,validation\n")
    data = load("csv", path)
    assert data.classes == 3
    assert " 1 of 3 rows " in data.notes[0] and "class owl," in data.notes[1]


def test_a_class_that_may_be_a_missing_value_is_noted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,label\n0.5,cat\n1.5,NA\n2.5,dog\n")
    [note] = load("csv", path).notes
    assert " NA " in note


def test_names_that_differ_in_spaces_or_case_alone_are_noted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,label,client\n0.5,cat,ann\n1.5,cat ,Ann\n")
    data = load("csv", path)
    assert data.classes == 2 and len(data.owners.names) == 2
    assert "'cat' and 'cat '" in data.notes[0]
    assert "'Ann' and 'ann'" in data.notes[1]
