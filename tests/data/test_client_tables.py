"""Tables with a column of clients (heterogeneity.md D11): Parquet and Arrow as pyarrow
writes them, CSV.
"""

import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import ag_news
from hpcfl.errors import UserError
from hpcfl.experiment import config


def load(name, path, **options):
    table = {
        "dataset": name,
        "file": str(path),
        **options,
    }
    return datasets.load(
        config.parse({"method": {"name": "local"}, "data": table}).data
    )


def owned(data):
    """Sample numbers by client."""
    return {
        name: np.flatnonzero(data.owners.of == number).tolist()
        for number, name in enumerate(data.owners.names)
    }


def picture(colour, mode="L", size=(3, 2), kind="PNG"):
    """An image as Hugging Face stores it."""
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, format=kind)
    return {"bytes": file.getvalue(), "path": "/etc/passwd"}


def described(table, **features):
    """The table with Hugging Face's description of its columns."""
    metadata = {"info": {"features": features}, "fingerprint": "a8e8c2c43b24df5a"}
    return table.replace_schema_metadata({"huggingface": json.dumps(metadata)})


CLASSES = {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}


def femnist():
    """Four images of two writers; of three classes the last does not occur."""
    columns = {
        "image": [picture(10 * number) for number in range(4)],
        "writer_id": ["w2", "w10", "w2", "w2"],
        "character": [0, 1, 1, 0],
    }
    return described(pa.table(columns), character=CLASSES, image={"_type": "Image"})


FEMNIST = {
    "features": ["image"],
    "label": "character",
    "client": "writer_id",
}


def test_d11_images_in_parquet(tmp_path):
    pq.write_table(femnist(), tmp_path / "f.parquet", row_group_size=2)
    data = load("parquet", tmp_path / "f.parquet", **FEMNIST)
    assert data.x.shape == (4, 1, 2, 3) and data.x.dtype == torch.uint8
    assert data.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert data.y.tolist() == [0, 1, 1, 0] and data.classes == 3
    assert owned(data) == {"w10": [1], "w2": [0, 2, 3]}  # sorted, as Flower's
    assert data.official_test == 0


def test_d11_files_of_a_folder_are_parts(tmp_path):
    """As Hugging Face names them."""
    table = femnist()
    pq.write_table(table[:1], tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(table[1:2], tmp_path / "train-00001-of-00002.parquet")
    pq.write_table(table[2:3], tmp_path / "test-00000-of-00001.parquet")
    pq.write_table(table[3:], tmp_path / "validation-00000-of-00001.parquet")
    data = load("parquet", tmp_path, **FEMNIST)
    assert data.x[:, 0, 0, 0].tolist() == [0, 10, 20] and data.official_test == 1
    assert owned(data) == {"w10": [1], "w2": [0, 2]}
    assert "1 of 4 rows are neither 'train' nor 'test'" in data.notes[0]


def test_d11_columns_of_numbers_are_the_features_that_are_left(tmp_path):
    table = pa.table(
        {
            "age": [30, 41, 52],
            "income": [0.5, 1.0, 2.0],
            "label": pa.array(["no", "yes", "no"]).dictionary_encode(),
            "client": [10, 9, 10],
            "split": ["train", "train", "test"],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    data = load("parquet", tmp_path / "t.parquet")
    assert data.x.tolist() == [[30, 0.5], [41, 1], [52, 2]]
    assert data.normalise(data.x).equal(data.x)
    assert data.y.tolist() == [0, 1, 0] and data.official_test == 1
    assert owned(data) == {"9": [1], "10": [0, 2]}
    one = load("parquet", tmp_path / "t.parquet", features=["income"], label="age")
    assert one.shape == (1,) and one.classes == 53


def test_d11_lists_of_numbers(tmp_path):
    """Ragged lists apart: fixed ones, nested ones, and whole numbers, which are token
    ids.
    """
    values = np.arange(24, dtype=np.float32)
    table = pa.table(
        {
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(values[:6]), 3),
            "nested": values.reshape(2, 3, 4).tolist(),
            "tokens": [[4, 0], [9, 1]],
            "label": [0, 1],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    file = tmp_path / "t.parquet"
    assert load("parquet", file, features=["fixed"]).x.tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    nested = load("parquet", file, features=["nested"])
    assert nested.x.numpy().tolist() == values.reshape(2, 3, 4).tolist()
    tokens = load("parquet", file, features=["tokens"])
    assert tokens.vocabulary == 10 and tokens.x.tolist() == [[4, 0], [9, 1]]


def test_d11_texts_are_tokens_and_the_vocabulary_is_that_of_the_training_rows(tmp_path):
    table = pa.table(
        {
            "text": ["unseen good", "so sad", "so good"],
            "label": [1, 0, 1],
            "split": ["test", "train", "train"],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    data = load("parquet", tmp_path / "t.parquet")
    # by frequency, then alphabetically: so good sad
    assert data.x[:, :3].tolist() == [[1, 3, 0], [1, 2, 0], [0, 2, 0]]
    assert data.shape == (ag_news.POSITIONS,) and data.vocabulary == 4


def wrong(**columns):
    table = {
        "x": [1.0, 2.0],
        "label": [0, 1],
        **columns,
    }
    return pa.table({name: values for name, values in table.items() if values})


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        (
            wrong(),
            {"label": "lable"},
            r"data\.label = 'lable' is no column of .*; did you mean 'label'",
        ),
        (
            wrong(),
            {"client": "user"},
            r"data\.client = 'user' is no column of .*; allowed: x, label",
        ),
        (wrong(), {"features": ["y"]}, r"data\.features = 'y' is no column of"),
        (wrong(label=None), {}, r"data\.label = 'label' is no column of"),
        (wrong(x=None), {}, "no column is left for the samples: set data.features"),
        (wrong(x=["a", None]), {}, "column 'x': row 2 has no value"),
        (wrong(label=[0, None]), {}, "column 'label': row 2 has no value"),
        (
            wrong(x=[[1.0], [1.0, 2.0]]),
            {},
            "column 'x': lists must have as many numbers",
        ),
        (wrong(x=[[1.0], []]), {}, "column 'x': lists must have as many numbers"),
        (
            wrong(x=[[None], [1]]),
            {},
            "column 'x': lists must hold numbers, all of them",
        ),
        (wrong(x=[["a"], ["b"]]), {}, "lists must hold numbers, all of them; string"),
        (wrong(x=[b"a", b"b"]), {}, "column 'x': binary is not read; numbers, texts"),
        (
            wrong(x=["a", "b"], z=[1, 2]),
            {},
            "the column 'x' is not one of numbers: it holds 'a'; set data.encode = 'one-hot'",
        ),
        (
            wrong(label=[0.5, 1.0]),
            {},
            r"the column 'label' holds float64 \[2\]; labels are",
        ),
        (wrong(label=[0, -1]), {}, "y must hold class numbers"),
        (wrong(label=[0, 10**7]), {}, "has 10,000,001 classes, from 1 to 100,000"),
        (wrong(split=["test", "test"]), {}, "no row is for training"),
        (wrong(split=[1, 2]), {}, "no row is for training"),
        (wrong(x=[1.0, float("nan")]), {}, "column 'x': row 2 holds nan; numbers must"),
        (
            wrong(x=[picture(0), {"bytes": None, "path": "/etc/passwd"}]),
            {},
            "row 2 has no bytes of an image; a path is not opened",
        ),
        (
            wrong(x=[picture(0), {"bytes": b"text", "path": None}]),
            {},
            "row 2: cannot be read as an image",
        ),
        (
            wrong(x=[picture(0), picture(0, size=(4, 4))]),
            {},
            "row 2 is 1×4×4, row 1 1×2×3; all must be alike",
        ),
        (
            wrong(x=[picture(0), picture(0, size=(4097, 4096))]),
            {},
            "row 2: 4097×4096 pixels, at most 16,777,216 in all are read",
        ),
        (wrong()[:0], {}, "0 rows; it must have 1 to 100,000,000"),
        (
            described(wrong(), label={"names": [1, 2]}),
            {},
            "description of the columns cannot",
        ),
        (
            described(wrong(), label={"names": ["a"]}),
            {},
            "column 'label' holds 0 … 1; the numbers of its 1 classes are 0 … 0",
        ),
    ],
)
def test_d11_tables_that_cannot_be_used_are_one_line(tmp_path, table, options, told):
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=told) as caught:
        load("parquet", tmp_path / "t.parquet", **options)
    assert "\n" not in str(caught.value)


def test_d11_files_that_are_no_parquet(tmp_path):
    with pytest.raises(UserError, match=r"none\.parquet: no such file"):
        load("parquet", tmp_path / "none.parquet")
    with pytest.raises(UserError, match=r"must hold \.parquet files, .*; it holds 0"):
        load("parquet", tmp_path)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and nothing")
    with pytest.raises(
        UserError, match=r"a\.parquet: cannot be read as a Parquet file"
    ):
        load("parquet", tmp_path)
    pq.write_table(wrong(), path)
    pq.write_table(wrong(x=[1, 2]), tmp_path / "b.parquet")
    with pytest.raises(UserError, match="all files must have the same columns"):
        load("parquet", tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:6] + bytes(20) + content[26:])
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(UserError, match=r"column '.*' cannot be read"):
        load("parquet", path)


def test_d11_a_file_that_would_fill_the_memory(tmp_path, monkeypatch):
    from hpcfl.data.sources import parquet

    monkeypatch.setattr(parquet, "UNPACKED", 1000)
    monkeypatch.setattr(parquet, "RATIO", 2)
    table = wrong(x=[0.0] * 10_000, label=[0] * 10_000)
    pq.write_table(table, tmp_path / "t.parquet", use_dictionary=False)
    with pytest.raises(UserError, match=r"would grow from [\d,]+ to [\d,]+ bytes"):
        load("parquet", tmp_path / "t.parquet")


def test_d11_without_pyarrow(tmp_path, monkeypatch):
    pq.write_table(wrong(), tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r'missing: pip install "\.\[parquet\]" in'):
        load("parquet", tmp_path / "t.parquet")


def saved(folder, table):
    """A data set as ``save_to_disk`` writes it, in two files."""
    folder.mkdir(parents=True)
    halves = [table[: len(table) // 2], table[len(table) // 2 :]]
    files = []
    for number, half in enumerate(halves):
        file = f"data-0000{number}-of-00002.arrow"
        with pa.ipc.new_stream(folder / file, half.schema) as writer:
            writer.write_table(half)
        files.append({"filename": file})
    state = {
        "_data_files": files,
        "_fingerprint": "a8e8",
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def saved_parts(folder, **parts):
    for part, table in parts.items():
        saved(folder / part, table)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))


NAMED = {"features": ["image"], "label": "character"}


def test_d11_flowers_partitions_saved_to_disk(tmp_path):
    """Eleven clients, because partition_10 comes after partition_9."""
    for client in range(11):
        saved(tmp_path / f"partition_{client}", femnist()[client % 3 : client % 3 + 2])
    data = load("huggingface", tmp_path, **NAMED)
    assert data.owners.names == tuple(f"partition_{client}" for client in range(11))
    assert data.owners.of.tolist() == np.repeat(np.arange(11), 2).tolist()
    assert data.x[:6, 0, 0, 0].tolist() == [0, 10, 10, 20, 20, 30]
    assert data.classes == 3 and data.official_test == 0


def test_d11_partitions_with_parts(tmp_path):
    table = femnist()
    saved_parts(tmp_path / "a", train=table[:2], test=table[2:3])
    saved_parts(tmp_path / "b", test=table[3:], train=table[1:3])
    data = load("huggingface", tmp_path, **NAMED)
    assert data.x[:, 0, 0, 0].tolist() == [0, 10, 10, 20, 20, 30]
    split = partition.make(by_client(clients=2), data)
    assert [held.tolist() for held in split.train] == [[0, 1], [2, 3]]
    assert [held.tolist() for held in split.test] == [[4], [5]]
    assert split.names == ["a", "b"]


def test_d11_one_data_set_saved_to_disk(tmp_path):
    data = load("huggingface", saved(tmp_path / "one", femnist()), **FEMNIST)
    assert owned(data) == {"w10": [1], "w2": [0, 2, 3]}


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("state.json", "{}", "_data_files': Field required"),
        ("state.json", "[", "cannot be read as Hugging Face's"),
        (
            "state.json",
            '{"_data_files": [{"filename": "../x.arrow"}]}',
            r"'\.\./x\.arrow' is no name of a file",
        ),
        ("state.json", '{"_data_files": []}', "names no file"),
        (
            "state.json",
            '{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}',
            "chosen by a file of indices; save it again after flatten_indices",
        ),
        ("data-00000-of-00002.arrow", "text", "cannot be read as a stream of Arrow's"),
        ("data-00000-of-00002.arrow", None, "no such file"),
        (
            "state.json",
            None,
            "has neither state.json nor dataset_dict.json, so it must",
        ),
    ],
)
def test_d11_folders_that_are_not_whole_are_one_line(tmp_path, file, content, told):
    path = saved(tmp_path / "one", femnist()) / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=told) as caught:
        load("huggingface", tmp_path / "one", **FEMNIST)
    assert "\n" not in str(caught.value)


def csv(path, text):
    path.write_text(text)
    return path


def test_d11_csv_with_a_column_of_clients(tmp_path):
    text = "a,b,label,client,split\n1,0.5,no,ann,train\n2,1,yes,bob,test\n3,2,no,bob,train\n"
    data = load("csv", csv(tmp_path / "t.csv", text))
    assert data.x.tolist() == [[1, 0.5], [3, 2], [2, 1]] and data.official_test == 1
    assert data.y.tolist() == [0, 0, 1] and owned(data) == {"ann": [0], "bob": [1, 2]}


def test_d11_csv_with_texts(tmp_path):
    text = 'text,label\n"so, so good",1\nNA,0\n'
    data = load("csv", csv(tmp_path / "t.csv", text))
    # so , good na
    assert data.x[:, :5].tolist() == [[1, 2, 1, 3, 0], [4, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read as csv .No columns to parse"),
        ("a,label\n1,0\n2\n", "column 'label': row 2 has no value"),
        ("a,label\n1,0\n2,1,3\n", "cannot be read as csv"),
        ("a,label\n1,0,5\n2,1,3\n", "cannot be read as csv"),
        ("a,label\n", "t.csv: no rows"),
        ("a,b\n1,2\n", r"data\.label = 'label' is no column of .*; allowed: a, b"),
        ('a,label\n"1,0\n', "cannot be read as csv"),
        ("a,label\n1,0\n,1\n", "column 'a': row 2 has no value"),
    ],
)
def test_d11_csv_that_is_none_is_one_line(tmp_path, text, told):
    with pytest.raises(UserError, match=told) as caught:
        load("csv", csv(tmp_path / "t.csv", text))
    assert "\n" not in str(caught.value)


def test_d11_csv_that_is_no_text(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match=r"t\.csv: cannot be read as csv"):
        load("csv", tmp_path / "t.csv")
    with pytest.raises(UserError, match=r"none\.csv: no such file"):
        load("csv", tmp_path / "none.csv")
    with pytest.raises(UserError, match=r"cannot be read as csv \(not a regular"):
        load("csv", tmp_path)
