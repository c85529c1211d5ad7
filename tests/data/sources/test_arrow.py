"""Arrow tables in several files: columns, types and class names are compared."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_tables import described, made, picture
from user_data import load, refusal

NAMES = ["cat", "dog", "emu"]
VIEWS = (
    int(pa.__version__.split(".")[0]) >= 21
)  # older versions do not write string views


def labelled(numbers, names, column="label", **columns):
    """Return a table whose ClassLabel has these names in this order."""
    x = [number + 0.5 for number in numbers]
    return described(pa.table({"x": x, column: numbers, **columns}), **{column: names})


def save(folder, **tables):
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (made(x=["a", None]), "'x': row 2 "),
        (made(label=[0, None]), "'label': row 2 "),
        (made(x=[[1.0], [1.0, 2.0]]), "column 'x': "),
        (made(x=[["a"], ["b"]]), "'x': list<element: string> "),
        (made(x=[b"a", b"b"]), "'x': binary "),
        (made(x=[1.0, float("nan")]), "'x': row 2 holds nan"),
        (made(x=[[0.5, 1.0], [2.0, np.nan]]), "row 2, entry [1] holds nan"),
        (made(x=[picture(0), {"bytes": None, "path": "/etc/passwd"}]), "row 2 "),
        (made(x=[picture(0), {"bytes": b"text"}]), "row 2: "),
        (made(x=[picture(0), picture(0, (4, 4))]), "row 2 has the shape (1, 4, 4)"),
        (made(x=[picture(0), picture(0, (4097, 4096))]), "4097×4096"),
        (made()[:0], "0 rows; "),
        (described(made(), label=[1, 2]), "Hugging Face's "),
        (described(made(), label=["a"]), "0 … 1; "),
        (pa.table([[1.0], [2.0], [0]], ["x", "x", "label"]), "'x' occurs 2 "),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_used_are_refused(tmp_path, table, expected):
    assert expected in refusal("parquet", save(tmp_path, t=table) / "t.parquet")


def test_lists_are_arrays_and_whole_numbers_are_token_ids(tmp_path):
    """Fixed lists, nested lists, and whole numbers, which are token ids."""
    values = np.arange(24, dtype=np.float32)
    table = pa.table(
        {
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(values[:6]), 3),
            "nested": values.reshape(2, 3, 4).tolist(),
            "tokens": [[4, 0], [9, 1]],
            "label": [0, 1],
        }
    )
    file = save(tmp_path, t=table) / "t.parquet"
    fixed, nested, tokens = (
        load("parquet", file, features=[name]) for name in ("fixed", "nested", "tokens")
    )
    assert fixed.x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert nested.x.tolist() == values.reshape(2, 3, 4).tolist()
    assert tokens.vocabulary == 10 and tokens.x.tolist() == [[4, 0], [9, 1]]


def test_texts_are_tokens_and_the_vocabulary_is_that_of_the_training_rows(tmp_path):
    texts = ["unseen good", "so sad", "so good"]
    parts = ["test", "train", "train"]
    table = pa.table({"text": texts, "label": [1, 0, 1], "split": parts})
    data = load("parquet", save(tmp_path, t=table) / "t.parquet")
    # sorted by frequency, then alphabetically: so good sad
    assert data.x[:, :3].tolist() == [[1, 3, 0], [1, 2, 0], [0, 2, 0]]
    assert data.vocabulary == 4


def test_clients_and_parts_may_be_class_numbers(tmp_path):
    one = labelled([2, 0], NAMES, "client", label=[0, 1])
    other = labelled([2, 1], NAMES, "client", label=[0, 1])
    data = load("parquet", save(tmp_path, a=one, b=other))
    assert data.owners.numbers.tolist() == [2, 0, 2, 1]
    parts = labelled([1, 0], ["test", "train"], "split", label=[0, 1])
    path = save(tmp_path, t=parts) / "t.parquet"
    assert load("parquet", path).official_test == 1


def test_categories_of_texts_are_matched_by_name(tmp_path):
    for name, animals in (("a", ["dog", "cat"]), ("b", ["emu", "dog"])):
        table = pd.DataFrame({"x": [0.5, 1.5], "label": animals})
        table["label"] = pd.Categorical(table["label"], animals)
        table.to_parquet(tmp_path / f"{name}.parquet")
    assert load("parquet", tmp_path).y.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (labelled([0], NAMES[::-1]), "label: "),
        (labelled([0], ["cat", "cat", "dog"]), "'cat' occurs 2 "),
        (pa.table({"x": [0.5], "label": [0]}), "none instead of label: "),
        (pa.table({"x": [0.5], "y": [0]}), "y (int64) instead of label (int64)"),
        (
            pa.table({"x": [1], "label": [0]}),
            "x (int64) instead of x (double)",
        ),
    ],
)
def test_files_that_differ_are_refused(tmp_path, other, expected):
    folder = save(tmp_path, a=labelled([0], NAMES), b=other)
    line = refusal("parquet", folder)
    assert expected in line and "b.parquet" in line


def test_columns_may_be_in_another_order_and_texts_stored_in_another_way(tmp_path):
    texts = pa.array(["b"], pa.large_string()).dictionary_encode()
    view = pa.array(["a"], pa.string_view() if VIEWS else pa.string())
    save(
        tmp_path,
        a=pa.table({"x": [0.5], "z": [1.5], "label": ["a"]}),
        b=pa.table({"label": texts, "z": [3.5], "x": [2.5]}),
        c=pa.table({"x": [4.5], "z": [5.5], "label": view}),
    )
    data = load("parquet", tmp_path)
    assert data.x.tolist() == [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]]
    assert data.y.tolist() == [0, 1, 0]


def test_an_index_in_some_files_alone_is_no_difference(tmp_path):
    table = pd.DataFrame({"x": [0.5, 1.5], "label": [0, 1]})
    table.to_parquet(tmp_path / "a.parquet")
    assert load("parquet", tmp_path / "a.parquet").notes == ()
    table[table.x > 1].to_parquet(tmp_path / "b.parquet")
    assert load("parquet", tmp_path).x.tolist() == [[0.5], [1.5], [1.5]]


def test_a_damaged_description_of_an_index_is_no_error(tmp_path):
    table = pa.table({"x": [1.0], "label": [0]})
    for metadata in ("{", "[]", json.dumps({"index_columns": [{"kind": "range"}]})):
        save(tmp_path, t=table.replace_schema_metadata({"pandas": metadata}))
        assert load("parquet", tmp_path / "t.parquet").shape == (1,)


class Matrix(pa.ExtensionType):
    """An extension type that ``datasets`` registers for its Array2D."""

    def __init__(self):
        super().__init__(pa.list_(pa.list_(pa.float32())), "hpcfl.tests.matrix")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


def test_extension_types_are_read_as_their_storage_type(tmp_path):
    values = [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]
    storage = pa.array(values, Matrix().storage_type)
    path = tmp_path / "t.parquet"
    pa.register_extension_type(Matrix())
    try:
        x = pa.ExtensionArray.from_storage(Matrix(), storage)
        save(tmp_path, t=pa.table({"x": x, "label": [0, 1]}))
        assert load("parquet", path).x.tolist() == values
    finally:
        pa.unregister_extension_type("hpcfl.tests.matrix")
    assert load("parquet", path).x.tolist() == values
