"""Large tensors of the server in parts, which any number of ranks write and read."""

import json
import os

import in_threads
import pytest
import torch
from refusals import expect_refusal
from test_checkpoint import hosted, same

from hpcfl.errors import RankFailure, RunFailure
from hpcfl.files import atomic
from hpcfl.files.atomic import Damaged
from hpcfl.storage import manifest, server_state
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.clients import ClientStore, digest_run, digest_tensors
from hpcfl.storage.manifest import FileLimits, Part, find_latest

LIMITS = FileLimits(100)  # bytes: two rows of ten float32 numbers


def make_state(round):
    """Return large state, models [7, 2, 5] and flags [3, 101], and small state, a row
    of 101 and the rest.
    """
    models = torch.arange(70.0).view(7, 2, 5)
    models += round
    return {
        "models": models,
        "flags": torch.arange(303).view(3, 101) % 3 == 0,
        "single": torch.full((1, 101), float(round)),
        "long": torch.arange(200.0),
        "a/b": torch.tensor(round),
    }


def make_store(rank):
    return ClientStore(hosted(rank), {"own": torch.zeros(2)})


def save(rank, folder, states):
    checkpoints = Checkpoints(folder, rank, limits=LIMITS)
    store = make_store(rank)
    checkpoints.restore(store)
    digests = []
    for round, state in states.items():
        server = state if rank.is_server else None
        checkpoints.start(round, server, store, {})
        digests.append(checkpoints.finish())
    checkpoints.close()
    return digests


def load(rank, folder):
    return Checkpoints(folder, rank).restore(make_store(rank))


def part_names(folder):
    return {
        shard.part.begin: shard.name
        for shard in find_latest(folder).files
        if shard.part and shard.part.tensor == "models"
    }


@pytest.mark.parametrize("written_by", [1, 2, 3, 5])
@pytest.mark.parametrize("read_by", [1, 2, 3, 7])
def test_any_number_of_ranks_reads_any_server_state(
    tmp_path, on_ranks, written_by, read_by
):
    state = make_state(4)
    [[written], *_] = on_ranks(
        written_by, lambda rank: save(rank, tmp_path, {4: state})
    )
    row = make_store(on_ranks(1, lambda rank: rank)[0]).snapshot().digests
    assert written == digest_run(digest_tensors(state), [row])
    restored, *others = on_ranks(read_by, lambda rank: load(rank, tmp_path))
    assert same(restored.server, state) and restored.digest == written
    assert [other.server for other in others] == [None] * (read_by - 1)
    assert same(server_state.read(tmp_path, find_latest(tmp_path)), state)


def test_files_are_the_same_on_any_number_of_ranks(tmp_path, on_ranks):
    for size in (1, 2, 5):
        on_ranks(
            size, lambda rank: save(rank, tmp_path / str(rank.size), {1: make_state(1)})
        )
    names = [sorted(os.listdir(tmp_path / size)) for size in ("1", "2", "5")]
    # seven rows of models in four parts, three of flags in three, the rest, the
    # manifest
    assert names[0] == names[1] == names[2] and len(names[0]) == 4 + 3 + 1 + 1


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        # 40 bytes per row: two are 80, three would be 120
        ([5, 2, 5], "float32", [(0, 2, 80), (2, 4, 80), (4, 5, 40)]),
        # one row is larger than a part
        ([2, 101], "bool", [(0, 1, 101), (1, 2, 101)]),
    ],
)
def test_parts_have_neighbouring_rows(shape, dtype, expected):
    parts = server_state.split("models", shape, dtype, LIMITS)
    assert [(part.begin, part.end, part.size) for part in parts] == expected


def test_a_tensor_of_many_rows_has_a_bounded_number_of_parts():
    """One of 10,000 models of ResNet-18 fits 64 MiB, and 25 make 400 parts."""
    shape = [10_000, 11_181_642]
    parts = server_state.split("models", shape, "float32", FileLimits())
    assert len(parts) == manifest.FILES == 400
    assert {part.rows for part in parts} == {25}
    given = server_state.split("models", shape, "float32", FileLimits(100 << 20))
    assert {part.rows for part in given} == {2}


def test_workers_write_the_parts():
    assert server_state.assign_owners(3, 1) == [0, 0, 0]
    assert server_state.assign_owners(3, 2) == [1, 1, 1]
    assert server_state.assign_owners(5, 4) == [1, 2, 3, 1, 2]


@pytest.mark.parametrize("size", [1, 3])
def test_rank_0_keeps_large_tensors_without_a_copy(on_ranks, size):
    state = make_state(1)

    def share(rank):
        server = state if rank.is_server else None
        return server_state.distribute(rank, server, LIMITS)

    of_server, *others = on_ranks(size, share)
    places = {name: tensor.data_ptr() for name, tensor in state.items()}
    kept = {name: tensor.data_ptr() for name, tensor in of_server.whole.items()}
    assert kept["models"] == places["models"] and kept["flags"] == places["flags"]
    assert kept["long"] != places["long"]
    assert len(of_server.parts) == (7 if size == 1 else 0)
    assert sorted(len(other.parts) for other in others) == [3, 4][: size - 1]


def test_unchanged_parts_are_referenced(tmp_path, on_ranks):
    on_ranks(2, lambda rank: save(rank, tmp_path, {1: make_state(1)}))
    before = part_names(tmp_path)
    inodes = {name: os.stat(tmp_path / name).st_ino for name in before.values()}
    # another process continues; only row 3 differs
    state = make_state(1)
    state["models"][3] += 1
    on_ranks(3, lambda rank: save(rank, tmp_path, {2: state}))
    after = part_names(tmp_path)
    assert [begin for begin in before if before[begin] != after[begin]] == [2]
    for begin in (0, 4, 6):
        assert os.stat(tmp_path / after[begin]).st_ino == inodes[before[begin]]


def test_parts_with_equal_rows_are_written_once(tmp_path, alone, monkeypatch):
    """As models of clients at the beginning of a run."""
    written, write = [], atomic.write

    def note_and_write(path, *given):
        written.append(path.name)
        write(path, *given)

    monkeypatch.setattr(atomic, "write", note_and_write)
    state = {"models": torch.ones(8, 10)}
    save(alone, tmp_path, {1: state})
    assert len(written) == len(set(written)) == 3  # the rest, four parts, the manifest
    assert same(load(alone, tmp_path).server, state)


def test_a_referenced_part_that_vanished_is_written_again(tmp_path, alone):
    checkpoints = Checkpoints(tmp_path, alone, limits=LIMITS)
    for round in (1, 2):
        checkpoints.start(round, make_state(1), make_store(alone), {})
        checkpoints.finish()
        if round == 1:
            (tmp_path / part_names(tmp_path)[2]).unlink()
    assert same(load(alone, tmp_path).server, make_state(1))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("damage", [b"", b"changed", None])
def test_a_damaged_part_is_reported_and_the_checkpoint_before_used(
    tmp_path, on_ranks, size, damage
):
    states = {1: make_state(1), 2: make_state(2)}
    on_ranks(size, lambda rank: save(rank, tmp_path, states))
    path = tmp_path / part_names(tmp_path)[4]
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    for restored in on_ranks(size, lambda rank: load(rank, tmp_path)):
        assert restored.round == 1 and len(restored.notes) == 1
        assert path.name in restored.notes[0]
        if restored.server is not None:
            assert same(restored.server, make_state(1))


def test_no_room_for_the_whole_of_a_tensor_ends_all_ranks(
    tmp_path, on_ranks, monkeypatch
):
    """Rank 0 has room for the rows of one rank."""
    on_ranks(3, lambda rank: save(rank, tmp_path, {1: make_state(1)}))
    allocate = server_state.allocate_rows

    def allocate_few(shape, dtype):
        if shape[0] == 7:
            raise RunFailure("No space left on device")
        return allocate(shape, dtype)

    monkeypatch.setattr(server_state, "allocate_rows", allocate_few)
    with pytest.raises(RankFailure, match=r"manifest-.*: No space left on device$"):
        in_threads.on_ranks(3, lambda rank: load(rank, tmp_path))


def change_manifest(path, change):
    """Change the body of a manifest and correct its checksum."""
    body = json.loads(path.read_text())["manifest"]
    change(body)
    document = {"sha256": manifest.compute_checksum(body), "manifest": body}
    path.write_text(json.dumps(document))


def test_a_manifest_of_the_format_before_is_read(tmp_path, on_ranks):
    state = {"model": torch.ones(3)}
    on_ranks(2, lambda rank: save(rank, tmp_path, {1: state}))

    def to_format_2(body):
        body["format"] = 2
        for file in body["files"]:
            del file["part"]

    change_manifest(tmp_path / manifest.name_manifest(1), to_format_2)
    restored, _ = on_ranks(2, lambda rank: load(rank, tmp_path))
    assert same(restored.server, state)


@pytest.mark.parametrize(
    "change",
    [
        {"begin": 3},
        {"end": 5},
        {"row": [2, 4]},
        {"dtype": "object"},
        {"tensor": "other"},
        {"end": 1 << 60},
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, alone, change):
    """As in a forged manifest with correct checksums."""
    save(alone, tmp_path, {1: make_state(1)})

    def forge(body):
        parts = [file["part"] for file in body["files"] if file["part"]]
        models = [part for part in parts if part["tensor"] == "models"]
        models[1].update(change)

    change_manifest(tmp_path / manifest.name_manifest(1), forge)
    with expect_refusal(r"manifest-00000001\.json: "):
        load(alone, tmp_path)


def test_a_file_with_other_rows_than_its_part_is_damaged(tmp_path, alone):
    save(alone, tmp_path, {1: {"models": torch.zeros(7, 10)}})
    [shard] = [shard for shard in find_latest(tmp_path).files if shard.part][:1]
    for dtype, row in (("int32", [10]), ("float32", [9])):
        part = Part("models", 0, 2, row, dtype)
        target = torch.empty(2, *row, dtype=getattr(torch, dtype)).numpy()
        with pytest.raises(Damaged, match="=models"):
            manifest.read_part(tmp_path / shard.name, part, target)
