"""Tables in Parquet files written by pyarrow (heterogeneity.md D11)."""

import sys

import pyarrow.parquet as pq
import torch
from arrow_tables import femnist, made
from user_data import load, owned, refusal

from hpcfl.data.sources import parquet

FEMNIST = {"features": ["image"], "label": "character", "client": "writer_id"}


def test_a_column_of_images_and_one_of_clients_are_read(tmp_path):
    pq.write_table(femnist(), tmp_path / "f.parquet", row_group_size=2)
    data = load("parquet", tmp_path / "f.parquet", **FEMNIST)
    assert data.x.shape == (4, 1, 2, 3) and data.x.dtype == torch.uint8
    assert data.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert data.y.tolist() == [0, 1, 1, 0] and data.classes == 3
    assert owned(data) == {"w10": [1], "w2": [0, 2, 3]}  # sorted, as in Flower
    assert data.official_test == 0


def test_files_of_a_folder_are_parts(tmp_path):
    """The file names are Hugging Face's."""
    names = ["train-00000-of-00002", "train-00001-of-00002", "my_test", "validation"]
    for number, name in enumerate(names):
        pq.write_table(femnist()[number : number + 1], tmp_path / f"{name}.parquet")
    data = load("parquet", tmp_path, **FEMNIST)
    assert data.x[:, 0, 0, 0].tolist() == [0, 10, 20] and data.official_test == 1
    assert owned(data) == {"w10": [1], "w2": [0, 2]}
    assert "1 of 4 rows are dropped; their parts are validation" in data.notes[0]
    (tmp_path / "my_test.parquet").rename(tmp_path / "north.parquet")
    assert "north.parquet: " in refusal("parquet", tmp_path, **FEMNIST)
    (tmp_path / f"{names[0]}.parquet").unlink()
    assert "one of 2 files, " in refusal("parquet", tmp_path, **FEMNIST)


def test_files_that_are_no_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    assert ".parquet files" in refusal("parquet", tmp_path)
    path.write_bytes(b"PAR1 and nothing")
    assert "a.parquet: " in refusal("parquet", tmp_path)
    pq.write_table(made(), path)
    content = path.read_bytes()
    path.write_bytes(content[:6] + bytes(20) + content[26:])
    assert "a.parquet: " in refusal("parquet", path)


def test_a_file_that_would_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "UNPACKED", 1000)
    monkeypatch.setattr(parquet, "RATIO", 2)
    table = made(x=[0.0] * 10_000, label=[0] * 10_000)
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, use_dictionary=False)
    assert "t.parquet: " in refusal("parquet", path)


def test_without_pyarrow_the_extra_to_install_is_named(tmp_path, monkeypatch):
    pq.write_table(made(), tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'pip install ".[parquet]"' in refusal("parquet", tmp_path / "t.parquet")
