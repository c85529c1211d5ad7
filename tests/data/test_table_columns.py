"""Columns of tables that are features, and names that are compared as they are written."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcfl.data import datasets
from hpcfl.data.sources._identifiers import looks_like_identifier
from hpcfl.errors import UserError
from hpcfl.experiment import config

ROWS = 12


def load(name, path, **options):
    table = {"dataset": name, "file": str(path), **options}
    return datasets.load(
        config.parse({"method": {"name": "local"}, "data": table}).data
    )


def frame(**columns):
    """Rows of two features, a label and a client."""
    generator = np.random.default_rng(3)
    table = {
        "a": generator.random(ROWS),
        "b": generator.integers(0, 4, ROWS),
        "label": np.arange(ROWS) % 2,
        "client": np.arange(ROWS) % 3,
    }
    return pd.DataFrame(table | columns)


def csv(path, text):
    path.write_text(text)
    return path


def test_an_index_of_pandas_is_no_feature(tmp_path):
    plain = frame()
    chosen = plain.sort_values("a")
    named = plain.set_index(pd.Index(np.arange(ROWS) % 5, name="b2"))
    several = plain.set_index([np.arange(ROWS) % 5, np.arange(ROWS)])
    for number, table in enumerate((chosen, named, several)):
        path = tmp_path / f"{number}.parquet"
        table.to_parquet(path)
        data = load("parquet", path)
        assert data.description.features == ("a", "b")
        assert data.shape == (2,) and "pandas' index" in data.notes[0]
    named.rename_axis(None).to_csv(tmp_path / "t.csv")
    again = pd.read_csv(tmp_path / "t.csv")  # with a column 'Unnamed: 0'
    again.to_csv(tmp_path / "again.csv")
    several.to_csv(tmp_path / "several.csv")
    for file in ("t.csv", "again.csv", "several.csv"):
        data = load("csv", tmp_path / file)
        assert data.description.features == ("a", "b") and data.shape == (2,)
    plain.to_parquet(tmp_path / "plain.parquet")  # its index is no column
    assert load("parquet", tmp_path / "plain.parquet").notes == ()


def test_a_column_that_features_names_is_used_whatever_it_looks_like(tmp_path):
    frame(patient_id=np.arange(ROWS)).sort_values("a").to_parquet(
        tmp_path / "t.parquet"
    )
    data = load("parquet", tmp_path / "t.parquet")
    assert data.description.features == ("a", "b")
    assert any("'patient_id'" in note and "identifier" in note for note in data.notes)
    named = ["patient_id", "__index_level_0__"]
    data = load("parquet", tmp_path / "t.parquet", features=named)
    assert data.description.features == tuple(named) and data.shape == (2,)
    assert data.notes == ()


def test_other_columns_of_labels_and_clients_are_no_features(tmp_path):
    """Where keys name others, features would tell the class or the client."""
    table = frame(hospital=np.arange(ROWS) % 2, disease=np.arange(ROWS) % 3)
    table.to_parquet(tmp_path / "t.parquet")
    keys = {"label": "disease", "client": "hospital"}
    data = load("parquet", tmp_path / "t.parquet", **keys)
    assert data.description.features == ("a", "b")
    assert "'label', 'client'" in data.notes[0]


def test_roles_are_found_in_any_case(tmp_path):
    frame(Client=np.arange(ROWS) % 4).to_csv(tmp_path / "t.csv", index=False)
    data = load("csv", tmp_path / "t.csv", client="client")
    assert data.shape == (2,) and "'Client'" in data.notes[0]


@pytest.mark.parametrize(
    ("name", "values", "files", "expected"),
    [
        ("row", np.arange(20), (), True),
        ("row", np.arange(20)[::-1], (), True),
        ("row", np.arange(20.0), (), True),
        ("row", np.tile(np.arange(10), 2), (10, 10), True),
        ("row", np.tile(np.arange(10), 2), (), False),
        ("row", np.arange(20) ** 2, (), True),
        ("age", np.random.default_rng(0).integers(18, 90, 300), (), False),
        ("age", np.array([30, 41, 52]), (), False),
        ("x", np.random.default_rng(0).random(300), (), False),
        ("x", np.sort(np.random.default_rng(0).random(300)), (), False),
        ("grid", np.array([3, 1, 2, 3]), (), False),
        ("patientID", np.array([7, 3, 7, 5]), (), True),
        ("user_id", np.array(["u1", "u2", "u3", "u1"], object), (), True),
        ("has_id", np.array([0, 1, 1, 0]), (), False),
        ("id", np.random.default_rng(0).random(30), (), False),
        ("index", np.array([4, 4, 1, 2]), (), True),
        ("refractive_index", np.array([4, 4, 1, 2]), (), False),
        ("patient", np.random.default_rng(0).permutation(900)[:30], (), True),
        ("patient", np.random.default_rng(0).integers(0, 9, 30), (), False),
        ("name", np.array([f"n{number}" for number in range(12)], object), (), True),
        ("text", np.array([f"n {number}" for number in range(12)], object), (), False),
        ("pixel", np.zeros(20, int), (), False),
    ],
)
def test_identifiers(name, values, files, expected):
    assert looks_like_identifier(name, values, files) == expected


def test_a_lone_column_of_different_words_is_a_text(tmp_path):
    names = pd.DataFrame({"name": [f"n{number}" for number in range(ROWS)]})
    names["label"] = 0
    names.to_csv(tmp_path / "t.csv", index=False)
    assert load("csv", tmp_path / "t.csv").vocabulary == ROWS + 1


def test_names_in_csv_are_compared_as_they_are_written(tmp_path):
    clients = ["1", "01", "001", "2", "1e2", "100", "NA", "nan", "None", "1.0", " 1"]
    lines = [f"0.{number},{number % 2},{name}" for number, name in enumerate(clients)]
    path = csv(tmp_path / "t.csv", "\n".join(["x,label,client", *lines]) + "\n")
    data = load("csv", path)
    assert sorted(data.owners.names) == sorted(clients)
    assert [data.owners.names[owner] for owner in data.owners.of] == clients
    labels = ["00", "0", "1", "01", "10"]
    lines = [f"0.5,{label}" for label in labels]
    data = load("csv", csv(path, "\n".join(["x,label", *lines]) + "\n"))
    assert data.classes == 5 and data.description.classes == tuple(sorted(labels))
    lines = [f"0.5,{label}" for label in ("True", "False", "True")]
    data = load("csv", csv(path, "\n".join(["x,label", *lines]) + "\n"))
    assert data.y.tolist() == [1, 0, 1]


def test_whole_numbers_in_csv_keep_their_order(tmp_path):
    lines = [f"0.5,{number},{number}" for number in (10, 9, 2)]
    data = load(
        "csv", csv(tmp_path / "t.csv", "\n".join(["x,label,client", *lines]) + "\n")
    )
    assert data.owners.names == ("2", "9", "10") and data.y.tolist() == [10, 9, 2]
    assert data.classes == 11 and "no sample has the class 0, 1" in data.notes[0]


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("a,b,a,label\n1,2,3,0\n", {}, "the heading 'a' stands 2 times"),
        ("a,b,label\n1,2,0\n", {"features": ["a", "a"]}, "column 'a' stands 2 times"),
        (
            "a,b,label\n1,2,0\n",
            {"features": ["label"]},
            "'label' is the column of labels",
        ),
        ("a,b,label\n1,2,0\n", {"features": []}, "name the columns of a sample"),
        ("a,b,label\n1,2,0\n", {"client": "label"}, "'label' stands 2 times"),
        ("a,label\n1,0\ninf,0\n", {}, "column 'a': row 2 holds inf"),
        ("a,label\n1,0\n1e39,0\n", {}, "column 'a': row 2 holds 1e\\+39"),
        (
            "a,b,label\n1,2,0\n2,nan,1\n",
            {},
            "'b' is not one of numbers: it holds 'nan'",
        ),
        ('a,b,label\n1,"1,5",0\n', {}, "'b' is not one of numbers: it holds '1,5'"),
        ("a,label\n1,0.5\n", {}, "'label' holds float64"),
        ("0.1,0.2,0\n0.3,0.4,1\n", {"label": "0"}, "the first line holds numbers"),
        ("a;label\n0,5;1\n", {}, "columns are separated by ';'"),
        ("a\tlabel\n0.5\t1\n", {}, r"columns are separated by '\\t'"),
        (
            "a,b,label,split\n1,2,0,Train\n",
            {},
            "no row is for training: the parts are 'Train'",
        ),
    ],
)
def test_csv_that_can_be_misread_is_refused(tmp_path, text, options, told):
    with pytest.raises(UserError, match=told) as caught:
        load("csv", csv(tmp_path / "t.csv", text), **options)
    assert "\n" not in str(caught.value)


def test_numbers_that_float32_cannot_tell_apart_are_refused(tmp_path):
    frame(time=1_700_000_000 + np.arange(ROWS) * 7 % 11).to_parquet(
        tmp_path / "t.parquet"
    )
    with pytest.raises(UserError, match="'time' has 11 different numbers, of which"):
        load("parquet", tmp_path / "t.parquet")
    x = 1e9 + np.arange(ROWS, dtype=float)[:, None]
    np.savez(tmp_path / "t.npz", x=x, y=np.zeros(ROWS, int))
    with pytest.raises(UserError, match="column 0 of x has 12 different numbers"):
        load("npz", tmp_path / "t.npz")
    frame(income=np.arange(ROWS) * 10**8 % 7).to_parquet(tmp_path / "t.parquet")
    assert load("parquet", tmp_path / "t.parquet").shape == (3,)


def test_names_that_differ_in_spaces_or_case_alone_are_noted(tmp_path):
    text = "x,label,client\n0.5,cat,ann\n1.5,cat ,Ann\n"
    data = load("csv", csv(tmp_path / "t.csv", text))
    assert data.classes == 2 and len(data.owners.names) == 2
    assert "the classes 'cat' and 'cat '" in data.notes[0]
    assert "the clients 'Ann' and 'ann'" in data.notes[1]


def test_headings_may_be_positions(tmp_path):
    text = "0,1,2\n0.5,1.5,0\n2.5,3.5,1\n"
    data = load("csv", csv(tmp_path / "t.csv", text), label="2")
    assert data.x.tolist() == [[0.5, 1.5], [2.5, 3.5]]


def test_an_arrow_table_with_two_columns_of_one_name_is_refused(tmp_path):
    table = pa.table([[1.0], [2.0], [0]], names=["x", "x", "label"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match="the column 'x' stands 2 times"):
        load("parquet", tmp_path / "t.parquet")


def test_a_damaged_description_of_an_index_is_no_error(tmp_path):
    table = pa.table({"x": [1.0], "label": [0]})
    for metadata in ("{", "[]", json.dumps({"index_columns": [{"kind": "range"}]})):
        described = table.replace_schema_metadata({"pandas": metadata})
        pq.write_table(described, tmp_path / "t.parquet")
        assert load("parquet", tmp_path / "t.parquet").shape == (1,)
