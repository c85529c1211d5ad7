import errno
import hashlib
import os
import threading
import time

import pytest
import torch
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import RunFailure, UserError
from hpcfl.files import atomic, heartbeat
from hpcfl.storage import checkpoint, manifest
from hpcfl.storage.checkpoint import Checkpoints, CheckpointSchedule
from hpcfl.storage.clients import ClientStore, digest_tensors
from hpcfl.storage.manifest import FileLimits, find_latest

TEMPLATE = {
    "layer.weight": torch.zeros(2, 3),
    "a/b": torch.tensor(0),
    "mask": torch.zeros(4, dtype=torch.bool),
}
CLIENTS = 10


def server_state(round):
    """Return state of varying shape, with all dtypes, 0-d and zero-size tensors, and
    names that HDF5 would interpret as paths.
    """
    return {
        "model": torch.full((round + 1, 3), float("nan")),
        ".": torch.tensor(float(round)),
        "ids": torch.arange(3),
        "a/../b %2E.c": torch.zeros(0, 4, dtype=torch.float64),
        "flags": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "ünï": torch.tensor(7),
        "": torch.ones(1),
    }


def client_state(ids, value):
    return {
        "layer.weight": torch.stack(
            [torch.full((2, 3), value + client / 100) for client in ids]
        ),
        "a/b": torch.tensor([round(value) * client for client in ids]),
        "mask": torch.ones(len(ids), 4, dtype=torch.bool),
    }


def hosted(communicator):
    """Return the clients of a rank: rank 0 has all if it is alone; otherwise the
    workers share them, interleaved.
    """
    if communicator.size == 1:
        return list(range(CLIENTS))
    return (
        list(range(communicator.rank - 1, CLIENTS, communicator.size - 1))
        if communicator.rank
        else []
    )


def save(communicator, folder, rounds, writers=range(CLIENTS)):
    """Write checkpoints of these rounds, each after a change of the ``writers``' state,
    and return the digests.
    """
    _, clients, checkpoints = load(communicator, folder)
    return [
        step(checkpoints, communicator, clients, round, writers) for round in rounds
    ]


def step(checkpoints, communicator, clients, round, writers=range(CLIENTS)):
    mine = [client for client in clients.ids if client in writers]
    clients.put(mine, client_state(mine, float(round)) if mine else clients.get([]))
    checkpoints.start(
        round,
        server_state(round) if communicator.is_server else None,
        clients,
        {"round": round},
    )
    return checkpoints.finish()


def load(communicator, folder, template=TEMPLATE, **limits):
    """Return the newest checkpoint, the clients of a rank, and their checkpoints."""
    checkpoints = Checkpoints(folder, communicator, **limits)
    clients = ClientStore(hosted(communicator), template)
    return checkpoints.restore(clients), clients, checkpoints


def same(one, other):
    return one.keys() == other.keys() and digest_tensors(one) == digest_tensors(other)


def names(folder, start):
    return sorted(name for name in os.listdir(folder) if name.startswith(start))


def test_checkpoints_send_heartbeats_on_a_slow_file_system(tmp_path, monkeypatch):
    """The first file is written after a heartbeat; a checkpoint is read with others."""
    beat, write = threading.Event(), atomic.write

    def write_late(*arguments):
        assert beat.wait(10)
        write(*arguments)

    monkeypatch.setattr(atomic, "write", write_late)
    alone = OneProcess()
    with heartbeat.use_listener(beat.set):
        save(alone, tmp_path, [1])
        _, clients, _ = load(alone, tmp_path)
        beat.clear()
        checkpoint.read_clients(tmp_path, find_latest(tmp_path), clients)
    assert beat.is_set()


def test_a_file_that_is_not_written_is_silent(tmp_path, monkeypatch):
    """While the second file is written, there is at most the heartbeat for the first one."""
    beats, counts, write = [], [], atomic.write

    def write_late(*arguments):
        before = len(beats)
        time.sleep(0.2)
        counts.append(len(beats) - before)
        write(*arguments)

    monkeypatch.setattr(atomic, "write", write_late)
    monkeypatch.setattr(checkpoint, "PAUSE", 0.01)
    with heartbeat.use_listener(lambda: beats.append(1)):
        save(OneProcess(), tmp_path, [1])
    assert counts[1] <= 1


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(manifest, "FILE_CLIENTS", 3)


@pytest.mark.parametrize("written_by", [1, 2, 4, 15])
@pytest.mark.parametrize("read_by", [1, 2, 5])
def test_any_number_of_ranks_reads_any_checkpoint(
    tmp_path, on_ranks, small_groups, written_by, read_by
):
    digests = on_ranks(
        written_by, lambda rank: save(rank, tmp_path, [4, 5], writers=range(8))
    )
    assert all(one == digests[0] for one in digests)
    read = on_ranks(read_by, lambda rank: load(rank, tmp_path))
    for rank, (restored, clients, _) in enumerate(read):
        assert (restored.round, restored.meta) == (5, {"round": 5})
        assert restored.digest == digests[0][1]
        if rank == 0:
            assert same(restored.server, server_state(5))
        else:
            assert restored.server is None
        for client in clients.ids:
            expected = (
                client_state([client], 5.0)
                if client < 8
                else ClientStore([client], TEMPLATE).get([client])
            )
            assert same(clients.get([client]), expected)
            assert (client in clients.snapshot().written) == (client < 8)


def test_the_digest_is_computed_from_the_state(tmp_path, alone):
    clients = ClientStore([0, 1], {"a": torch.zeros(1)})
    checkpoints = Checkpoints(tmp_path, alone)
    checkpoints.start(1, {"m": torch.ones(2)}, clients, {})
    server, row = (
        bytes.fromhex(digest_tensors(state))
        for state in ({"m": torch.ones(2)}, {"a": torch.zeros(1)})
    )
    expected = hashlib.sha256(server + row + row).hexdigest()
    assert checkpoints.finish() == expected == find_latest(tmp_path).digest
    assert not names(tmp_path, "clients")  # no client wrote


def test_an_empty_folder_has_no_checkpoint(tmp_path, on_ranks):
    folder = tmp_path / "[strange] ünï*?"
    assert find_latest(folder) is None
    assert on_ranks(3, lambda rank: load(rank, folder)[0]) == [None] * 3
    assert on_ranks(3, lambda rank: Checkpoints(folder, rank).finish()) == [None] * 3
    on_ranks(3, lambda rank: save(rank, folder, [1]))
    assert on_ranks(1, lambda rank: load(rank, folder)[0].round) == [1]


def test_changes_after_the_start_are_not_stored(tmp_path, alone):
    clients, server = ClientStore([0], {"a": torch.zeros(1)}), {"m": torch.zeros(1000)}
    checkpoints, meta = Checkpoints(tmp_path, alone), {"list": []}
    checkpoints.start(1, server, clients, meta)
    server["m"].fill_(1)
    clients.put([0], {"a": torch.ones(1, 1)})
    meta["list"].append(1)
    with pytest.raises(RuntimeError, match="round 1"):
        checkpoints.start(2, server, clients, meta)
    checkpoints.finish()
    clients = ClientStore([0], {"a": torch.zeros(1)})
    restored = Checkpoints(tmp_path, alone).restore(clients)
    assert not restored.server["m"].any() and not clients.get([0])["a"].any()
    assert restored.meta == {"list": []}


def test_unchanged_shards_are_referenced(tmp_path, alone, small_groups):

    def list_places():
        return {path: path.stat().st_ino for path in tmp_path.glob("clients*")}

    save(alone, tmp_path, [1])
    before = list_places()
    assert len(before) == 4
    save(alone, tmp_path, [2], writers=[4])  # continued by another process
    after = list_places()
    assert len(after.items() - before.items()) == 1 and before.items() < after.items()
    save(alone, tmp_path, [3, 4], writers=[])
    assert names(tmp_path, "clients") == sorted(
        {shard.name for shard in find_latest(tmp_path).files}
        - {*names(tmp_path, "server")}
    )


def test_two_checkpoints_are_kept_and_no_other_file(tmp_path, on_ranks):
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".server.h5.0123.tmp").touch()
    on_ranks(3, lambda rank: save(rank, tmp_path, [1, 2, 3, 4]))
    assert names(tmp_path, "manifest") == [
        "manifest-00000003.json",
        "manifest-00000004.json",
    ]
    assert len(names(tmp_path, "server")) == 2 and len(names(tmp_path, "clients")) == 4
    assert len(os.listdir(tmp_path)) == 2 + 2 + 4 + 1


def damages(data):
    """Yield the file truncated, with a bit flipped at its start, middle and end, empty,
    and missing.
    """
    yield from (data[: len(data) // 2], data[:-1], b"", None, data + b"x")
    for place in (0, len(data) // 3, len(data) // 2, len(data) - 9):
        yield data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize("kind", ["manifest", "server", "clients"])
def test_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path, alone, kind):
    save(alone, tmp_path, [1, 2])
    newest = find_latest(tmp_path)
    files = [newest.name, *(shard.name for shard in newest.files)]
    path = tmp_path / next(name for name in files if name.startswith(kind))
    intact = path.read_bytes()
    for data in damages(intact):
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        restored, clients, _ = load(alone, tmp_path)
        assert restored.round == 1 and same(restored.server, server_state(1))
        assert same(clients.get([3]), client_state([3], 1.0))
        gone = data is None and kind == "manifest"
        assert len(restored.notes) == (not gone)
        for note in restored.notes:
            assert "manifest-00000002.json: " in note and "\n" not in note
        path.write_bytes(intact)
    assert load(alone, tmp_path)[0].round == 2


def test_all_ranks_end_if_all_checkpoints_are_damaged(tmp_path, on_ranks):
    on_ranks(3, lambda rank: save(rank, tmp_path, [1, 2]))
    for name in names(tmp_path, "manifest"):
        (tmp_path / name).write_text("{")
    failures = on_ranks(3, lambda rank: load(rank, tmp_path))
    check_refusals(failures, "manifest-00000001", "manifest-00000002", "--fresh")
    assert find_latest(tmp_path) is None


def check_refusals(failures, *parts):
    """Assert that each rank ends with one line that contains the parts."""
    for failure in failures:
        assert isinstance(failure, UserError) and "\n" not in str(failure)
        for part in parts:
            assert part in str(failure)


def test_a_damaged_checkpoint_does_not_count_among_the_kept(tmp_path, alone):
    save(alone, tmp_path, [1, 2, 3])
    (tmp_path / "manifest-00000003.json").write_text("{")
    save(alone, tmp_path, [4])  # continues from 2
    assert names(tmp_path, "manifest") == [
        "manifest-00000002.json",
        "manifest-00000004.json",
    ]
    (tmp_path / "manifest-00000004.json").write_text("{")
    assert load(alone, tmp_path)[0].round == 2


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_on_one_rank_is_raised_on_all(
    tmp_path, on_ranks, monkeypatch, failing
):
    on_ranks(3, lambda rank: save(rank, tmp_path, [1]))
    write, broken = atomic.write, set()

    def fail_on_one_rank(path, data, durable=True):
        if threading.get_ident() in broken:
            raise RunFailure(f"{path}: No space left on device")
        write(path, data, durable)

    def work(rank):
        _, clients, checkpoints = load(rank, tmp_path)
        if rank.rank == failing:
            checkpoints._writer.submit(
                lambda: broken.add(threading.get_ident())
            ).result()
        return step(checkpoints, rank, clients, 2)

    monkeypatch.setattr(atomic, "write", fail_on_one_rank)
    for rank, failure in enumerate(on_ranks(3, work)):
        assert isinstance(failure, RunFailure) and "No space left" in str(failure)
        assert rank == failing or f"rank {failing}: " in str(failure)
    monkeypatch.undo()
    assert on_ranks(3, lambda rank: load(rank, tmp_path)[0].round) == [1] * 3


def test_a_failed_commit_is_raised_on_all_and_the_next_one_works(
    tmp_path, on_ranks, monkeypatch
):
    replace, broken = os.replace, [True]

    def fail_for_manifests(source, target):
        if broken and "manifest" in str(target):
            raise OSError(errno.EROFS, "Read-only file system")
        replace(source, target)

    def work(rank):
        _, clients, checkpoints = load(rank, tmp_path)
        with pytest.raises(RunFailure, match="Read-only file system"):
            step(checkpoints, rank, clients, 1)
        rank.bcast(broken.clear() if rank.is_server else None)
        return step(checkpoints, rank, clients, 2)

    monkeypatch.setattr(os, "replace", fail_for_manifests)
    assert len(set(on_ranks(2, work))) == 1
    assert find_latest(tmp_path).round == 2


def test_full_disk_leaves_the_last_checkpoint(small_disk, alone):
    _, clients, checkpoints = load(alone, small_disk)
    first = step(checkpoints, alone, clients, 1)
    checkpoints.start(2, {"m": torch.zeros(1_000_000)}, clients, {})
    with pytest.raises(RunFailure, match="No space left on device"):
        checkpoints.finish()
    assert load(alone, small_disk)[0].digest == first


def test_state_of_another_experiment_is_refused(tmp_path, on_ranks):
    on_ranks(2, lambda rank: save(rank, tmp_path, [1]))
    other = {"other": torch.zeros(1)}
    failures = on_ranks(2, lambda rank: load(rank, tmp_path, other))
    check_refusals(failures, "manifest-00000001.json: ")


def test_files_missing_on_one_rank_are_refused(tmp_path, on_ranks):
    """As on a host without the file system of the results."""
    on_ranks(2, lambda rank: save(rank, tmp_path, [1]))

    def work(rank):
        return load(rank, tmp_path / "unmounted" if rank.rank else tmp_path)

    check_refusals(on_ranks(2, work), "manifest-00000001.json")


def test_a_manifest_of_another_format_is_not_read(tmp_path, alone, monkeypatch):
    monkeypatch.setattr("hpcfl.storage.manifest.FORMAT", 9)
    save(alone, tmp_path, [1])
    monkeypatch.undo()
    with expect_refusal(r"`--fresh` .*manifest-00000001\.json"):
        load(alone, tmp_path)


def store_of(clients, written, width=1):
    """Return a store of clients in which those that are ``written`` have own rows."""
    store = ClientStore(clients, {"a": torch.zeros(width)})
    store.put(written, {"a": torch.ones(1, 1).expand(len(written), width)})
    return store


def group(store, *limits):
    return list(manifest.group_clients(store.snapshot(), *limits))


def test_groups_are_bounded_and_leave_out_clients_that_never_wrote():
    # more than half of all clients, so that 64 form a group
    store = store_of(range(200), [*range(120), 199])
    assert group(store) == [[*range(64)], [*range(64, 120)], [199]]
    two_fit = manifest.FILE_BYTES // 8
    big = store_of(range(5), range(5), two_fit)
    assert group(big) == [[0, 1], [2, 3], [4]]
    limits = FileLimits(2 * manifest.FILE_BYTES)
    assert group(big, limits) == [[0, 1, 2, 3], [4]]
    assert group(store_of([], [])) == []


def test_many_clients_have_a_bounded_number_of_files():
    """Of 10,000 clients 25 share a file, of 100,000 small ones 250, on all ranks."""
    fit_alone = manifest.FILE_BYTES - 1
    assert FileLimits(clients=10_000).count_clients(fit_alone) == 25
    assert FileLimits(clients=300).count_clients(fit_alone) == 1
    assert FileLimits(clients=100_000).count_clients(4) == 250
    assert FileLimits(manifest.FILE_BYTES, 10_000).count_clients(fit_alone) == 1
    groups = []
    for rank in range(2):
        ids = range(rank, 2_000, 2)
        groups += group(store_of(ids, ids), FileLimits(clients=100_000))
    assert list(map(len, groups)) == [250] * 8


def test_a_run_continues_with_files_of_another_size(tmp_path, alone):
    save(alone, tmp_path, [1])
    [whole] = names(tmp_path, "clients")
    begun, clients, checkpoints = load(alone, tmp_path, limits=FileLimits(100))
    assert begun.round == 1
    step(checkpoints, alone, clients, 2, writers=[])
    checkpoints.close()
    assert len(names(tmp_path, "clients")) > 1 + len([whole])
    restored, read, _ = load(alone, tmp_path)
    assert restored.round == 2
    assert same(read.get(read.ids), client_state(read.ids, 1.0))


def test_groups_of_few_among_many_span_more_clients():
    # 99 of 6,400 clients were written, one of 64: a group spans 64 · 64 = 4,096
    # clients, and its written clients, 64 and 35, are one file.
    spread = list(range(0, 6_336, 64))
    store = store_of(range(6_400), spread)
    assert group(store) == [spread[:64], spread[64:]]
    # Another client splits only the files of its own group.
    store.put([1], {"a": torch.ones(1, 1)})
    first = sorted([1, *spread[:64]])
    assert group(store) == [first[:64], first[64:], spread[64:]]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def wait_and_write(
    schedule: CheckpointSchedule, clock: Clock, waits: float, writes: float
):
    """Write a checkpoint that training waits for, and one in the background."""
    with schedule.waiting():
        clock.now += waits
    schedule.record_begin()
    assert not schedule.is_due(1)
    clock.now += writes
    schedule.record_end(writes)


def test_checkpoints_are_due_after_a_fixed_number_of_rounds():
    schedule = CheckpointSchedule(3)
    assert [round for round in range(1, 10) if schedule.is_due(round)] == [3, 6, 9]


def test_the_first_checkpoint_is_due_after_the_first_round():
    assert CheckpointSchedule("auto", Clock()).is_due(1)


def test_checkpoints_cost_at_most_two_per_cent():
    clock = Clock()
    schedule = CheckpointSchedule("auto", clock)
    wait_and_write(schedule, clock, waits=0.5, writes=1.5)
    clock.now += 99
    assert not schedule.is_due(2)
    clock.now += 1
    assert schedule.is_due(3)
    wait_and_write(schedule, clock, waits=0.25, writes=0.75)
    clock.now += 49
    assert not schedule.is_due(4)
    clock.now += 1
    assert schedule.is_due(5)


def test_a_finish_without_a_beginning_changes_nothing():
    clock = Clock()
    schedule = CheckpointSchedule("auto", clock)
    schedule.record_end(1000.0)
    assert schedule.is_due(1)
