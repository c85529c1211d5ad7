import errno
import os
import threading

import h5py
import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.errors import RunFailure
from hpcfl.experiment import config
from hpcfl.files import atomic
from hpcfl.storage import results
from hpcfl.storage.metrics import ResultsWriter, find_result_rounds

CONFIG = config.parse({"name": "x" * 200, "method": {"name": "fedavg"}}).resolved()
HEADER = {
    "config": CONFIG,
    "command": ["hpcfl", "run", "caf\udce9.toml"],
    "commit": None,
}
STATIC = {"clients": np.array([3, 4]), "train/0": np.arange(5)}


def values(round):
    return {
        "seconds/train": round / 2,
        "bytes/up": round,
        "clients/pre/correct": np.full(2, round),
        "clients/pre/loss": np.full(2, round, np.float32),
    }


@pytest.fixture
def writer(tmp_path):
    return ResultsWriter(tmp_path, {}, {})


def test_metrics_header_and_static_arrays_are_read_back(tmp_path):
    writer = ResultsWriter(tmp_path, HEADER, STATIC)
    for round in (1, 2, 3):
        writer.record(round, values(round))
        if round == 2:
            writer.merge()
    read = results.read(tmp_path)
    assert read.header == HEADER
    assert read.static.keys() == STATIC.keys()
    assert read.static["train/0"].tolist() == list(range(5))
    assert read.rounds.tolist() == [1, 2, 3] and not read.completed and not read.notes
    assert read.values["seconds/train"].tolist() == [0.5, 1.0, 1.5]
    assert read.values["clients/pre/correct"].dtype == np.int64
    losses = read.values["clients/pre/loss"]
    assert losses.dtype == np.float32 and losses.shape == (3, 2)
    writer.record(4, {"final": 1})
    assert results.read(tmp_path).completed == [3]
    writer.merge()
    assert results.read(tmp_path).completed == [3]
    assert os.listdir(tmp_path / "rounds") == []


def test_short_rounds_share_a_file_and_none_is_lost(tmp_path):
    writer = ResultsWriter(tmp_path, {}, {}, every=3600.0)
    writer.record(1, {"a": 1})
    writer.record(2, {"a": 2, "clients/b": np.ones(2)})
    writer.record(3, {"a": 3})
    # the first result is not awaited
    assert os.listdir(tmp_path / "rounds") == ["00000001.h5"]
    writer.publish()
    writer.publish()
    files = ["00000001.h5", "00000002-00000003.h5"]
    assert sorted(os.listdir(tmp_path / "rounds")) == files
    writer.record(4, {"a": 4})
    for rounds in ([1, 2, 3], [1, 2, 3, 4]):
        read = results.read(tmp_path)
        assert read.rounds.tolist() == read.values["a"].tolist() == rounds
        missing = np.isnan(read.values["clients/b"]).all(axis=1)
        assert missing.tolist() == [round != 2 for round in rounds]
        writer.merge()
    assert os.listdir(tmp_path / "rounds") == []


def test_missing_names_are_nan_or_minus_one(tmp_path, writer):
    writer.record(1, {"a": 1.0, "clients/b": np.array([1, 2], np.uint8)})
    writer.merge()
    writer.record(2, {"c": True})
    read = results.read(tmp_path).values
    np.testing.assert_array_equal(read["a"], [1.0, np.nan])
    assert read["clients/b"].tolist() == [[1, 2], [-1, -1]]
    assert read["c"].tolist() == [-1, 1]


def test_newest_record_of_a_round_replaces_all_of_it(tmp_path, writer):
    for round in range(4):
        writer.record(round, {"a": 1, "old": 1})
    writer = ResultsWriter(tmp_path, {}, {})
    assert results.read(tmp_path).rounds.tolist() == [0, 1, 2, 3]
    writer.record(2, {"a": 2})
    for _ in range(2):
        read = results.read(tmp_path)
        assert read.rounds.tolist() == [0, 1, 2, 3]
        assert read.values["a"].tolist() == [1, 1, 2, 1]
        assert read.values["old"].tolist() == [1, 1, -1, 1]
        writer.merge()


def test_prolonged_several_times_all_ends_are_remembered(tmp_path):
    for rounds in (2, 5):
        writer = ResultsWriter(tmp_path, HEADER, STATIC)
        writer.record(rounds + 1, {"final": 1})
        writer.merge()
    writer = ResultsWriter(tmp_path, HEADER, STATIC)
    writer.record(6, {"final": 0})
    read = results.read(tmp_path)
    assert read.completed == [2, 5] and read.rounds.tolist() == [3, 6]
    assert read.played.tolist() == [False, True]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: bytes(len(data)),
    ],
)
@pytest.mark.parametrize(
    "file, left",
    [("metrics.h5", [2, 3]), ("rounds/00000002.h5", [1, 3])],
)
def test_damaged_file_is_reported_and_set_aside(tmp_path, file, left, damage):
    writer = ResultsWriter(tmp_path, HEADER, {})
    writer.record(1, values(1))
    writer.merge()
    writer.record(2, values(2))
    writer.record(3, values(3))
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    read = results.read(tmp_path)
    assert read.rounds.tolist() == left
    [note] = read.notes
    assert file in note and "\n" not in note
    assert ResultsWriter(tmp_path, HEADER, {}).notes == [note]
    assert (tmp_path / f"{file}.damaged").exists()
    read = results.read(tmp_path)
    assert read.rounds.tolist() == left and not read.notes and read.header == HEADER


def test_reader_holds_the_file_open_while_it_is_merged(tmp_path, writer):
    writer.record(1, values(1))
    writer.merge()
    with h5py.File(tmp_path / "metrics.h5", "r") as reader:
        writer.record(2, values(2))
        writer.merge()
        assert reader["rounds"][()].tolist() == [1]
    assert results.read(tmp_path).rounds.tolist() == [1, 2]


@pytest.mark.slow
def test_a_reader_finds_all_published_rounds_during_writing(tmp_path, writer):
    published, failures = [0], []

    def write():
        for round in range(60):
            writer.record(round, {"a": round})
            published[0] = round + 1
            if round % 3 == 0:
                writer.merge()

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        before = published[0]
        rounds = results.read(tmp_path).rounds.tolist()
        if rounds != list(range(len(rounds))) or len(rounds) < before:
            failures.append((before, rounds))
    thread.join()
    assert not failures


def test_a_folder_without_results_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with expect_refusal(rf"^{folder}: "):
            results.read(folder)


def test_a_full_disk_leaves_recorded_rounds_readable(small_disk):
    writer = ResultsWriter(small_disk, {}, {})
    writer.record(1, {"clients/a": np.zeros(50_000)})
    with pytest.raises(RunFailure, match="No space left on device"):
        for round in range(2, 9):
            writer.record(round, {"clients/a": np.zeros(50_000)})
    assert results.read(small_disk).rounds.tolist() == [1, 2]
    with pytest.raises(RunFailure, match=r"metrics.h5: No space left on device"):
        writer.merge()
    assert results.read(small_disk).rounds.tolist() == [1, 2]


def test_failed_merge_keeps_the_rounds(tmp_path, writer, monkeypatch):
    writer.record(1, values(1))

    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(atomic.os, "fsync", fail)
    with pytest.raises(RunFailure, match="Input/output error"):
        writer.merge()
    assert results.read(tmp_path).rounds.tolist() == [1]


NAN = np.nan


@pytest.mark.parametrize(
    ("rounds", "numbers", "expected"),
    [
        ([1, 2, 3], [0.5, 0.7, 0.6], (1, 2, [2])),
        # the first of equal rounds; the last with a number
        ([1, 2, 3], [0.7, 0.7, NAN], (0, 1, [1])),
        # a tenth of 21 is 2.1: rounds after 18
        (range(1, 22), [*range(20), 0], (19, 20, [18, 19, 20])),
        # scored every tenth round
        ([10, 20, 30, 31], [0.1, 0.2, 0.3, NAN], (2, 2, [2])),
    ],
)
def test_result_rounds_by_hand(rounds, numbers, expected):
    found = find_result_rounds(np.array(rounds), np.array(numbers, float), float)
    assert (found.best, found.last, found.tail) == expected


def test_the_best_is_the_lowest_where_less_is_better():
    numbers = np.array([0.5, 0.7])
    assert find_result_rounds(np.array([1, 2]), numbers, lambda value: -value).best == 0


def test_rounds_without_numbers_have_no_result():
    assert find_result_rounds(np.array([1, 2]), np.array([NAN, NAN]), float) is None


def test_rounds_of_a_longer_attempt_are_dropped(tmp_path):
    for number, final in ((1, 0), (2, 0), (3, 1), (4, 0), (5, 0)):
        ResultsWriter(tmp_path, HEADER, STATIC).record(number, {"final": final})
    ResultsWriter(tmp_path, HEADER, STATIC, rounds=2).merge()
    read = results.read(tmp_path)
    assert read.rounds.tolist() == [1, 2, 3] and read.completed == [2]
    ResultsWriter(tmp_path, HEADER, STATIC, rounds=1)
    assert results.read(tmp_path).rounds.tolist() == [1]


def test_a_folder_that_vanished_is_not_made_again(tmp_path):
    with pytest.raises(RunFailure):
        ResultsWriter(tmp_path / "moved", {}, {})
    assert not (tmp_path / "moved").exists()


def test_a_run_in_the_place_of_a_moved_one_keeps_its_rounds(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    moved = ResultsWriter(folder, HEADER, {})
    moved.record(1, values(1))
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    ResultsWriter(folder, HEADER, {}).record(1, values(10))
    for write in (lambda: moved.record(2, values(2)), moved.merge):
        with pytest.raises(RunFailure, match=f"^{folder}: "):
            write()
    read = results.read(folder)
    assert read.rounds.tolist() == [1] and read.values["bytes/up"].tolist() == [10]
