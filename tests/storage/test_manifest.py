"""Manifests with a correct checksum and impossible content."""

import json
import os

import pytest
import torch

from hpcfl.files.atomic import Damaged
from hpcfl.storage import manifest
from hpcfl.storage.clients import ClientStore, Row
from hpcfl.storage.manifest import Manifest, Shard

A, B = "a" * 64, "b" * 64
SERVER = {
    "name": f"server-{A}.h5",
    "sha256": A,
    "size": 10,
    "ids": None,
    "digests": [A],
}
CLIENTS = {
    "name": f"clients-{B}.h5",
    "sha256": B,
    "size": 10,
    "ids": [0, 3],
    "digests": [A, B],
}
BODY = {
    "format": 3,
    "round": 2,
    "digest": A,
    "meta": {"rounds": 9},
    "files": [SERVER, CLIENTS],
}


def write(folder, body):
    path = folder / "manifest-00000002.json"
    path.write_text(
        json.dumps({"sha256": manifest.compute_checksum(body), "manifest": body})
    )
    return path


def test_a_valid_manifest_is_read(tmp_path):
    found = manifest.read(write(tmp_path, BODY))
    assert found == Manifest(2, A, {"rounds": 9}, [Shard(**SERVER), Shard(**CLIENTS)])


@pytest.mark.parametrize(
    "changed",
    [
        {"round": -1},
        {"round": True},
        {"round": 10**9},
        {"round": 3},
        {"digest": "x"},
        {"meta": {"x": float("nan")}},
        {"meta": json.loads("[" * 300 + "]" * 300)},
        {"files": [CLIENTS]},
        {"files": [SERVER, SERVER]},
        {"files": [SERVER, CLIENTS, CLIENTS]},
        {"files": "abc"},
        {"files": [1]},
        {"files": [SERVER | {"part": "x"}]},
        {"best": 5},
        {"best": {name: value for name, value in BODY.items() if name != "format"}},
        {"meta": {"rounds": "9"}},
        {"meta": {"inputs": 5}},
        {"meta": {"lanes": [["x"]]}},
        {"more": 1},
    ],
)
def test_a_wrong_entry_is_refused_in_one_line(tmp_path, changed):
    with pytest.raises(Damaged) as caught:
        manifest.read(write(tmp_path, BODY | changed))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "/etc/passwd"},
        {"name": f"clients-{A}.h5"},
        {"sha256": "B" * 64},
        {"size": -1},
        {"ids": [3, 0]},
        {"ids": ["0", "3"]},
        {"digests": [A]},
        {"digests": ["x", B]},
        {"more": 1},
    ],
)
def test_a_wrong_file_is_refused(tmp_path, changed):
    with pytest.raises(Damaged):
        manifest.read(write(tmp_path, BODY | {"files": [SERVER, CLIENTS | changed]}))


@pytest.mark.parametrize(
    "text", [b"[1]", b"{}", b"[" * 100_000, b"\xff", b'{"sha256": 1, "manifest": {}}']
)
def test_an_invalid_manifest_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "manifest-00000002.json").write_bytes(text)
    with pytest.raises(Damaged) as caught:
        manifest.read(tmp_path / "manifest-00000002.json")
    assert str(caught.value).isprintable()


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")]
)
def test_files_of_a_checkpoint_are_files(tmp_path, plant):
    plant(tmp_path / CLIENTS["name"])
    with pytest.raises(Damaged, match=r"clients-b*\.h5: "):
        Shard(**CLIENTS).verify(tmp_path)
    (path := write(tmp_path, BODY)).unlink()
    plant(path)
    with pytest.raises(Damaged):
        manifest.read(path)


def test_a_file_of_another_size_is_not_hashed(tmp_path, monkeypatch):
    os.truncate(os.open(tmp_path / CLIENTS["name"], os.O_CREAT | os.O_WRONLY), 1 << 40)
    with pytest.raises(Damaged, match="SHA-256"):
        Shard(**CLIENTS).verify(tmp_path)


def test_a_clients_state_is_fetched_once_for_a_file(tmp_path, monkeypatch):
    """For any number of tensors: the state may be on a GPU, or in a file."""
    state = {
        name: torch.arange(4.0).view(2, 2) for name in ("model", "personal", "weights")
    }
    store = ClientStore([3, 5], {name: tensor[0] for name, tensor in state.items()})
    store.put([3, 5], state)
    rows = store.snapshot().written
    assert [row.digest for row in rows.values()]  # also takes the state
    fetched = []
    tensors = Row.tensors.fget
    monkeypatch.setattr(
        Row, "tensors", property(lambda row: fetched.append(row) or tensors(row))
    )
    shard = manifest.write_clients(tmp_path, [3, 5], rows)
    assert fetched == list(rows.values())
    read = manifest.read_tensors(tmp_path / shard.name, None)
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
