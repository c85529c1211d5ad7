"""Tables in several files, whose columns, types and class names are compared."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcfl.data import datasets
from hpcfl.errors import UserError
from hpcfl.experiment import config

NAMES = ["cat", "dog", "emu"]


def load(name, path, **options):
    table = {"dataset": name, "file": str(path), **options}
    return datasets.load(
        config.parse({"method": {"name": "local"}, "data": table}).data
    )


def labelled(animals, order, column="label", **columns):
    """A table of Hugging Face's whose ClassLabel has its names in this order."""
    numbers = [order.index(animal) for animal in animals]
    x = [float(NAMES.index(animal)) + 0.5 for animal in animals]
    table = pa.table({"x": x, column: numbers, **columns})
    features = {column: {"names": order, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return table.replace_schema_metadata(metadata)


def save(folder, *tables):
    """Write a data set as ``save_to_disk`` does."""
    folder.mkdir(parents=True)
    files = []
    for number, table in enumerate(tables):
        name = f"data-{number:05}-of-{len(tables):05}.arrow"
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
        files.append({"filename": name})
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    return folder


def save_parts(folder, **parts):
    for part, table in parts.items():
        save(folder / part, table)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))


def test_labels_are_matched_by_name_between_files(tmp_path):
    one = labelled(["emu", "cat", "dog"], NAMES)
    other = labelled(["emu", "cat", "cat"], NAMES[::-1])
    expected = [2, 0, 1, 2, 0, 0]
    save(tmp_path / "shards", one, other)
    save(tmp_path / "clients" / "a", one)
    save(tmp_path / "clients" / "b", other)
    save_parts(tmp_path / "parts", train=one, test=other)
    for folder in ("shards", "clients", "parts"):
        data = load("huggingface", tmp_path / folder)
        assert data.y.tolist() == expected and data.x[:, 0].tolist() == [
            number + 0.5 for number in expected
        ]
        assert data.description.classes == tuple(NAMES)
    pq.write_table(one, tmp_path / "a.parquet")
    pq.write_table(other, tmp_path / "b.parquet")
    assert load("parquet", tmp_path).y.tolist() == expected


def test_parts_that_are_not_read_are_noted(tmp_path):
    table = labelled(["emu", "cat"], NAMES)
    save_parts(tmp_path / "a", train=table, validation=table, test=table)
    for folder in (tmp_path / "a", tmp_path):  # a data set, and one of client a
        (note,) = load("huggingface", folder).notes
        assert note.endswith("not validation")


def test_clients_and_parts_with_class_names_are_matched_by_name(tmp_path):
    one = labelled(["emu", "cat"], NAMES, "client", label=[0, 1])
    other = labelled(["emu", "dog"], NAMES[::-1], "client", label=[0, 1])
    save(tmp_path / "clients", one, other)
    assert load("huggingface", tmp_path / "clients").owners.of.tolist() == [2, 0, 2, 1]
    parts = pa.table({"x": [0.5, 1.5], "label": [0, 1], "split": [1, 0]})
    features = {"split": {"names": ["test", "train"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(parts.replace_schema_metadata(metadata), tmp_path / "t.parquet")
    assert load("parquet", tmp_path / "t.parquet").official_test == 1


def test_categories_of_texts_are_matched_by_name(tmp_path):
    for name, animals in (("a", ["dog", "cat"]), ("b", ["emu", "dog"])):
        table = pd.DataFrame({"x": [0.5, 1.5], "label": animals})
        table["label"] = pd.Categorical(table["label"], animals)
        table.to_parquet(tmp_path / f"{name}.parquet")
    assert load("parquet", tmp_path).y.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            labelled(["cat"], ["cat", "dog"]),
            "has the classes cat, dog; .* has cat, dog, emu",
        ),
        (labelled(["cat"], ["Cat", "cat", "dog"]), "must name the same classes"),
        (labelled(["cat"], ["cat", "cat", "dog"]), "the class 'cat' stands 2 times"),
        (pa.table({"x": [0.5], "label": [0]}), "has the classes without names"),
        (
            pa.table({"x": [0.5], "y": [0]}),
            "b.parquet has the columns x, y; .*x, label",
        ),
        (pa.table({"x": [1], "label": [0]}), "'x' holds int64, in .*a.parquet double"),
        (pa.table({"x": [0.5], "label": ["cat"]}), "'label' holds string, in .* int64"),
    ],
)
def test_files_that_differ_are_refused_with_both_lists(tmp_path, other, told):
    pq.write_table(labelled(["cat"], NAMES), tmp_path / "a.parquet")
    pq.write_table(other, tmp_path / "b.parquet")
    with pytest.raises(UserError, match=told) as caught:
        load("parquet", tmp_path)
    assert "\n" not in str(caught.value)


def test_columns_may_be_in_another_order_and_texts_stored_in_another_way(tmp_path):
    pq.write_table(
        pa.table({"x": [0.5], "z": [1.5], "label": ["a"]}), tmp_path / "a.parquet"
    )
    texts = pa.array(["b"], pa.large_string()).dictionary_encode()
    pq.write_table(
        pa.table({"x": [4.5], "z": [5.5], "label": pa.array(["a"], pa.string_view())}),
        tmp_path / "c.parquet",
    )
    pq.write_table(
        pa.table({"label": texts, "z": [3.5], "x": [2.5]}), tmp_path / "b.parquet"
    )
    data = load("parquet", tmp_path)
    assert data.x.tolist() == [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]]
    assert data.y.tolist() == [0, 1, 0]


def test_an_index_in_some_files_alone_is_no_difference(tmp_path):
    table = pd.DataFrame({"x": [0.5, 1.5], "label": [0, 1]})
    table.to_parquet(tmp_path / "a.parquet")
    table[table.x > 1].to_parquet(tmp_path / "b.parquet")
    assert load("parquet", tmp_path).x.tolist() == [[0.5], [1.5], [1.5]]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.parquet", "test.parquet"),
        ("digits_train.parquet", "digits_test.parquet"),
        ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
    ],
)
def test_names_of_files_say_their_part(tmp_path, train, test):
    pq.write_table(pa.table({"x": [0.5], "label": [0]}), tmp_path / test)
    pq.write_table(pa.table({"x": [1.5], "label": [0]}), tmp_path / train)
    data = load("parquet", tmp_path)
    assert data.x.tolist() == [[1.5], [0.5]] and data.official_test == 1
    (tmp_path / train).rename(tmp_path / "north.parquet")
    with pytest.raises(UserError, match=r"named by their part, .*'north\.parquet'"):
        load("parquet", tmp_path)


def test_a_missing_shard_is_refused(tmp_path):
    table = pa.table({"x": [0.5], "label": [0]})
    pq.write_table(table, tmp_path / "train-00000-of-00002.parquet")
    with pytest.raises(UserError, match="is one of 2 files, of which 1 are there"):
        load("parquet", tmp_path)
    folder = save(tmp_path / "saved", table, table)
    state = {"_data_files": [{"filename": "data-00000-of-00002.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="is one of 2 files"):
        load("huggingface", folder)
    state["_data_files"] *= 2
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"the file '.*' stands 2 times"):
        load("huggingface", folder)


def test_folders_of_clients_are_alike_and_whole(tmp_path):
    table = pa.table({"x": [0.5], "label": [0]})
    save_parts(tmp_path / "a", train=table, test=table)
    save(tmp_path / "b", table)
    with pytest.raises(UserError, match="b: has no train and test, other folders have"):
        load("huggingface", tmp_path)
    (tmp_path / "b" / "state.json").unlink()
    with pytest.raises(UserError, match=r"b: has neither state\.json nor"):
        load("huggingface", tmp_path)


def test_folders_beside_a_column_of_clients_are_noted(tmp_path):
    save(tmp_path / "a", pa.table({"x": [0.5], "label": [0], "client": ["z"]}))
    data = load("huggingface", tmp_path)
    assert data.owners.names == ("z",) and "not the folders" in data.notes[0]


def test_an_error_names_the_file_and_its_row(tmp_path):
    pq.write_table(pa.table({"x": [0.5, 1.5], "label": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"x": [0.5, np.inf], "label": [0, 1]}), tmp_path / "b.parquet"
    )
    with pytest.raises(UserError, match=r"b\.parquet: column 'x': row 2 holds inf"):
        load("parquet", tmp_path)
    lists = pa.table({"x": [[0.5, 1.0], [2.0, np.nan]], "label": [0, 1]})
    pq.write_table(lists, tmp_path / "lists.parquet")
    with pytest.raises(UserError, match=r"column 'x': row 2, entry \[1\] holds nan"):
        load("parquet", tmp_path / "lists.parquet")


class Matrix(pa.ExtensionType):
    """An extension type such as ``datasets`` registers for its Array2D."""

    def __init__(self):
        super().__init__(pa.list_(pa.list_(pa.float32())), "hpcfl.tests.matrix")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


def test_extension_types_are_read_as_what_they_store(tmp_path):
    pa.register_extension_type(Matrix())
    try:
        values = [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]
        storage = pa.array(values, Matrix().storage_type)
        x = pa.ExtensionArray.from_storage(Matrix(), storage)
        save(tmp_path / "saved", pa.table({"x": x, "label": [0, 1]}))
        assert load("huggingface", tmp_path / "saved").x.tolist() == values
    finally:
        pa.unregister_extension_type("hpcfl.tests.matrix")
    assert load("huggingface", tmp_path / "saved").x.tolist() == values
