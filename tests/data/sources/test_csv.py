"""Tables in CSV files: unchanged names, and content that can be misread."""

import numpy as np
import pandas as pd
import pytest
from user_data import load, owned, refusal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.csv"


def test_columns_of_clients_and_parts_are_read(path):
    path.write_text(
        "a,b,label,client,split\n1,0.5,no,ann,train\n2,1,yes,bob,test\n3,2,no,bob,train\n"
    )
    data = load("csv", path)
    assert data.x.tolist() == [[1, 0.5], [3, 2], [2, 1]] and data.official_test == 1
    assert data.y.tolist() == [0, 0, 1] and owned(data) == {"ann": [0], "bob": [1, 2]}


def test_texts_are_tokens(path):
    path.write_text('text,label\n"so, so good",1\nNA,0\n')
    # so , good na
    assert load("csv", path).x[:, :5].tolist() == [[1, 2, 1, 3, 0], [4, 0, 0, 0, 0]]


def test_names_are_compared_as_they_are_written(path):
    clients = ["1", "01", "001", "2", "1e2", "100", "NA", "nan", "None", "1.0", " 1"]
    lines = [f"0.{number},{number % 2},{name}" for number, name in enumerate(clients)]
    path.write_text("\n".join(["x,label,client", *lines]) + "\n")
    data = load("csv", path)
    assert [data.owners.names[owner] for owner in data.owners.numbers] == clients
    labels = ["00", "0", "1", "01", "10", "True", "False", "True"]
    path.write_text("\n".join(["x,label", *(f"0.5,{label}" for label in labels)]))
    data = load("csv", path)
    assert data.description.classes == tuple(sorted(set(labels)))
    assert data.y.tolist() == [sorted(set(labels)).index(label) for label in labels]


def test_whole_numbers_keep_their_order(path):
    path.write_text("x,label,client\n0.5,10,10\n0.5,9,9\n0.5,2,2\n")
    data = load("csv", path)
    assert data.owners.names == ("2", "9", "10") and data.y.tolist() == [10, 9, 2]
    assert data.classes == 11 and "class 0, 1" in data.notes[0]


def test_headings_may_be_positions(path):
    path.write_text("0,1,2\n0.5,1.5,0\n2.5,3.5,1\n")
    assert load("csv", path, label="2").x.tolist() == [[0.5, 1.5], [2.5, 3.5]]


def test_an_index_of_pandas_is_no_feature(tmp_path, path):
    table = pd.DataFrame({"a": [0.5, 0.1, 0.7], "label": [0, 1, 0]}, [4, 4, 1])
    table.to_csv(path)
    pd.read_csv(path).to_csv(tmp_path / "again.csv")  # with a column 'Unnamed: 0'
    table.set_index([np.arange(3), np.arange(3)]).to_csv(tmp_path / "several.csv")
    for file in tmp_path.iterdir():
        data = load("csv", file)
        assert data.description.features == ("a",) and "pandas' index" in data.notes[0]


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        ("", {}, "t.csv: "),
        ("a,label\n1,0\n2\n", {}, "'label': row 2 "),
        ("a,label\n1,0\n,1\n", {}, "'a': row 2 "),
        ("a,label\n1,0,5\n2,1,3\n", {}, "t.csv: "),
        ("a,label\n", {}, "t.csv: "),
        ("a,b\n1,2\n", {}, "data.label = 'label': "),
        ("a,b,a,label\n1,2,3,0\n", {}, "'a' occurs 2 "),
        ("a,label\n1,0\ninf,0\n", {}, "'a': row 2 holds inf"),
        ("a,b,label\n1,2,0\n2,nan,1\n", {}, "'nan'"),
        ('a,b,label\n1,"1,5",0\n', {}, "'1,5'"),
        ("a,label\n25,0\n31,1\nNA,0\n", {}, "'NA'"),
        ('a,label\n"1,5",0\n2,1\n', {}, "'1,5'"),
        ("a,label\n1,0.5\n", {}, "'label' holds float64"),
        ("0.1,0.2,0\n0.3,0.4,1\n", {"label": "0"}, "first line"),
        ("a;label\n0,5;1\n", {}, "';'"),
        ("a\tlabel\n0.5\t1\n", {}, "'\\t'"),
        ("a,b,label,split\n1,2,0,Train\n", {}, "Train"),
    ],
)
def test_ambiguous_files_are_refused(path, text, keys, expected):
    path.write_text(text)
    assert expected in refusal("csv", path, **keys)


def test_files_that_are_no_text_are_refused(path):
    assert f"{path.parent}: " in refusal("csv", path.parent)
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "t.csv: " in refusal("csv", path)
