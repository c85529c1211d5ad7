"""Heartbeats between ranks, with a simulated MPI."""

from types import SimpleNamespace

import pytest

from hpcfl.communication.watchdog import Watchdog


class GivenUp(Exception):
    """End of the job, with the silent rank and the allowed seconds."""


class OfThree:
    """MPI of rank 0 of three: heartbeats of ``alive`` ranks arrive at once."""

    BYTE = None
    rank, size = 0, 3

    def __init__(self, alive):
        self.COMM_WORLD, self.Status = self, SimpleNamespace
        self.alive, self.arrived, self.sent = alive, [], []

    def Isend(self, content, dest, tag):
        self.sent.append(dest)
        if dest in self.alive:
            self.arrived.append(dest)
        return SimpleNamespace(Test=lambda: True)

    def Iprobe(self, tag, status):
        status.source = self.arrived[0] if self.arrived else None
        return bool(self.arrived)

    def Recv(self, content, source, tag):
        self.arrived.remove(source)


@pytest.fixture
def start(monkeypatch):
    """Return ``start(alive)``, which starts rank 0's MPI and its watchdog with a limit
    of ten seconds; a clock of one entry replaces the time.
    """
    clock = [100.0]
    monkeypatch.setattr("hpcfl.communication.watchdog.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        "hpcfl.communication.watchdog.threading.Thread",
        lambda **keys: SimpleNamespace(start=lambda: None),
    )

    def give_up(silent, seconds):
        raise GivenUp(silent, seconds)

    def make(alive):
        mpi = OfThree(alive)
        watchdog = Watchdog(mpi, give_up)
        watchdog.allow(10.0)
        return mpi, watchdog, clock

    return make


def test_a_silent_rank_ends_the_job_and_is_named(start):
    _, watchdog, clock = start(alive=[1])
    for _ in range(5):
        clock[0] += 2
        watchdog.check()
    clock[0] += 2
    with pytest.raises(GivenUp) as caught:
        watchdog.check()
    assert caught.value.args == (2, 10.0)


def test_ranks_with_heartbeats_may_take_any_time(start):
    mpi, watchdog, clock = start(alive=[1, 2])
    for _ in range(50):
        clock[0] += 2
        watchdog.check()
    assert mpi.sent == [1, 2] * 50


def test_recent_heartbeats_are_not_sent_again(start):
    mpi, watchdog, clock = start(alive=[1, 2])
    watchdog.beat()
    clock[0] += 0.9
    watchdog.beat()
    assert mpi.sent == [1, 2]
