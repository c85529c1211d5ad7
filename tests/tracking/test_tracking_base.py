"""Trackers outside the run's critical path: their events, also after an interruption,
and isolation of their errors.
"""

import threading
import time
from typing import ClassVar

import numpy as np
import pytest
import tiny
from playing import run_alone
from refusals import expect_refusal

from hpcfl.storage import results
from hpcfl.tracking import base
from hpcfl.tracking.base import Tracker, Tracking


class Recorder(Tracker):
    """A tracker that stores its events and their thread."""

    package = "numpy"
    begun: ClassVar[list] = []

    def __init__(self, folder, config):
        self.rounds, self.thread, self.closed = {}, threading.current_thread(), False
        self.folder, self.config = folder, config
        Recorder.begun.append(self)

    def write(self, round, numbers):
        assert round not in self.rounds and round > max(self.rounds, default=0)
        self.rounds[round] = dict(numbers)

    def close(self):
        self.closed = True


class Breaks(Recorder):
    def write(self, round, numbers):
        raise ConnectionError("nobody\nthere")


class Hangs(Recorder):
    def write(self, round, numbers):
        time.sleep(60)


class Missing(Recorder):
    package = "no_such_package.part"


class Plain(Recorder):
    package = ""


@pytest.fixture(autouse=True)
def _no_earlier_trackers():
    """Forget the trackers of earlier tests."""
    Recorder.begun.clear()


def play(folder, *names, rounds=3, **sections):
    table = tiny.table(
        "fedavg",
        rounds=rounds,
        runtime={"track": [f"test_tracking_base:{name}" for name in names]},
        checkpoint={"every": 1},
        **sections,
    )
    run_alone(table, folder)
    return results.read(folder)


@pytest.mark.slow
def test_a_tracker_receives_every_round_in_its_own_thread(tmp_path):
    found = play(tmp_path / "run", "Recorder")
    [tracker] = Recorder.begun
    assert list(tracker.rounds) == [1, 2, 3, 4]
    assert tracker.closed
    assert tracker.thread is not threading.main_thread()
    assert tracker.folder == tmp_path / "run" / "test_tracking_base:Recorder"
    assert tracker.config["rounds"] == 3
    for row, round in enumerate(tracker.rounds):
        for name, number in tracker.rounds[round].items():
            assert number == found.values[name][row]
        assert {"pre/weighted", "seconds/round"} <= tracker.rounds[round].keys()
    assert "post/weighted" not in tracker.rounds[4]  # NaN there


@pytest.mark.slow
def test_a_tracker_receives_all_rounds_once_after_an_interruption(tmp_path, printed):
    play(tmp_path / "run", "Recorder", rounds=4)
    (
        tmp_path / "run" / "checkpoints" / "manifest-00000004.json"
    ).unlink()  # round 4 is repeated
    found = play(tmp_path / "run", "Recorder", rounds=4)
    first, second = Recorder.begun
    assert "failed" not in printed()  # a repeated round fails
    assert list(second.rounds) == [1, 2, 3, 4, 5] == found.rounds.tolist()
    for round, numbers in first.rounds.items():
        same = {
            name: number
            for name, number in numbers.items()
            if not name.startswith(("seconds", "bytes"))
        }
        assert same == {name: second.rounds[round][name] for name in same}


@pytest.mark.slow
def test_a_failing_tracker_is_dropped_with_one_note(tmp_path, printed):
    found = play(tmp_path / "run", "Breaks", "Recorder")
    assert found.completed == [3] and list(Recorder.begun[0].rounds) in (
        [],
        [1, 2, 3, 4],
    )
    output = " ".join(printed().split())
    assert (
        output.count(
            "note: runtime.track: test_tracking_base:Breaks failed, the run continues "
            "without it (ConnectionError: nobody there)"
        )
        == 1
    )
    assert {tuple(tracker.rounds) for tracker in Recorder.begun} == {(), (1, 2, 3, 4)}


def test_a_hanging_tracker_does_not_delay_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "PATIENCE", 0.1)
    begun = time.monotonic()
    with Tracking(["test_tracking_base:Hangs"], tmp_path, {}) as tracking:
        for round in range(1, 1000):
            tracking.round(round, {"pre/weighted": 0.5})
    assert time.monotonic() - begun < 30
    [note] = tracking.notes
    assert note.startswith("runtime.track: test_tracking_base:Hangs ")
    assert " 0.1 s; " in note


def test_a_tracker_receives_only_a_rounds_finite_numbers(tmp_path):
    with Tracking(["test_tracking_base:Recorder"], tmp_path, {}) as tracking:
        tracking.round(
            1,
            {
                "a": 1,
                "b": np.float64(0.5),
                "c": np.nan,
                "clients/d": np.zeros(3),
            },
        )
    assert Recorder.begun[0].rounds == {1: {"a": 1.0, "b": 0.5}}


def test_unknown_ones_and_missing_packages_are_refused_before_round_1(
    tmp_path, monkeypatch
):
    with expect_refusal(r"runtime\.track = 'tensorbord' .*'tensorboard'"):
        base.check(["tensorbord"])
    with expect_refusal(r"^runtime\.track = '.*:Missing': no_such_package .*install"):
        play(tmp_path / "run", "Missing")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(base, "find_spec", lambda package: None)
    with expect_refusal(r'\.track = \'wandb\': .*pip install "\.\[wandb\]"'):
        base.check(["wandb"])


def test_a_tracker_may_need_no_package():
    base.check(["test_tracking_base:Plain"])
    assert base.Tracker.package == ""


def test_a_tracker_does_not_write_through_a_link(tmp_path):
    """TensorBoard's would also remove the events in that folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "events.out.tfevents.1").write_text("another run's")
    (tmp_path / "tensorboard").symlink_to(elsewhere)
    with Tracking(["tensorboard"], tmp_path, {}) as tracking:
        tracking.round(1, {"pre/weighted": 0.5})
    assert [path.name for path in elsewhere.iterdir()] == ["events.out.tfevents.1"]
    [note] = tracking.notes
    assert "tensorboard " in note and "link" in note
