"""Data sets in the format of ``save_to_disk`` (heterogeneity.md D11)."""

import json

import numpy as np
import pyarrow as pa
import pytest
from arrow_tables import femnist
from user_data import load, owned, refusal

from hpcfl.data import partition
from hpcfl.data.partitions.by_client import plugin as by_client

NAMED = {"features": ["image"], "label": "character"}


def save(folder, table):
    """Write a data set in two files."""
    folder.mkdir(parents=True)
    half = len(table) // 2
    files = []
    for number, rows in enumerate((table[:half], table[half:])):
        file = f"data-0000{number}-of-00002.arrow"
        with pa.ipc.new_stream(folder / file, rows.schema) as writer:
            writer.write_table(rows)
        files.append({"filename": file})
    state = {"_data_files": files, "_fingerprint": "a8e8", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def save_parts(folder, **parts):
    for part, table in parts.items():
        save(folder / part, table)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))


def test_folders_of_flower_are_clients_in_the_order_of_their_numbers(tmp_path):
    """Eleven clients, so that partition_10 must come after partition_9."""
    for client in range(11):
        save(tmp_path / f"partition_{client}", femnist()[client % 3 : client % 3 + 2])
    data = load("huggingface", tmp_path, **NAMED)
    assert data.owners.names == tuple(f"partition_{client}" for client in range(11))
    assert data.owners.numbers.tolist() == np.repeat(np.arange(11), 2).tolist()
    assert data.x[:6, 0, 0, 0].tolist() == [0, 10, 10, 20, 20, 30]
    assert data.classes == 3 and data.official_test == 0


def test_parts_of_clients_are_training_and_test_samples(tmp_path):
    save_parts(tmp_path / "a", train=femnist()[:2], test=femnist()[2:3])
    save_parts(
        tmp_path / "b", test=femnist()[3:], train=femnist()[1:3], other=femnist()
    )
    data = load("huggingface", tmp_path, **NAMED)
    assert data.x[:, 0, 0, 0].tolist() == [0, 10, 10, 20, 20, 30]
    split = partition.make(by_client(clients=2), data)
    assert [held.tolist() for held in split.train] == [[0, 1], [2, 3]]
    assert [held.tolist() for held in split.test] == [[4], [5]]
    assert split.names == ["a", "b"] and data.notes[0].endswith("other")


def test_one_folder_is_one_data_set(tmp_path):
    folder = save(tmp_path / "one", femnist())
    data = load("huggingface", folder, client="writer_id", **NAMED)
    assert owned(data) == {"w10": [1], "w2": [0, 2, 3]}


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("state.json", "{}", "_data_files': "),
        ("state.json", "[", "state.json: "),
        ("state.json", '{"_data_files": [{"filename": "../x.arrow"}]}', "../x.arrow"),
        ("state.json", '{"_data_files": []}', "state.json: "),
        (
            "state.json",
            '{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}',
            "flatten_indices",
        ),
        (
            "state.json",
            '{"_data_files": [{"filename": "data-00000-of-00002.arrow"}]}',
            "one of 2 files, ",
        ),
        ("state.json", json.dumps({"_data_files": 2 * [{"filename": "a"}]}), "'a'"),
        ("data-00000-of-00002.arrow", "text", "arrow: "),
        ("data-00000-of-00002.arrow", None, "00000-of-00002.arrow: "),
        ("state.json", None, "state.json nor dataset_dict.json"),
    ],
)  # fmt: skip
def test_folders_that_are_not_whole_are_refused(tmp_path, file, content, expected):
    path = save(tmp_path / "one", femnist()) / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert expected in refusal("huggingface", tmp_path / "one", **NAMED)


def test_folders_of_clients_are_alike_and_whole(tmp_path):
    table = pa.table({"x": [0.5, 1.5], "label": [0, 1], "client": ["z", "z"]})
    save_parts(tmp_path / "a", train=table, test=table)
    data = load("huggingface", tmp_path)
    assert data.owners.names == ("z",) and "not from the folders" in data.notes[0]
    save(tmp_path / "b", table)
    assert "b/data-00000-of-00002.arrow: " in refusal("huggingface", tmp_path)
    (tmp_path / "b" / "state.json").unlink()
    assert "b: " in refusal("huggingface", tmp_path)
