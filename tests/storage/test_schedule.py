"""When a checkpoint is due, by a clock that is moved by hand."""

import pytest

from hpcfl.storage.schedule import Schedule


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def save(schedule: Schedule, clock: Clock, waits: float, writes: float) -> None:
    """A checkpoint for which training waits, and which is written while it goes on."""
    with schedule.waiting():
        clock.now += waits
    schedule.begun()
    assert not schedule.due(1)
    clock.now += writes
    schedule.finished(writes)


def test_every_so_many_rounds():
    schedule = Schedule(3)
    assert [round for round in range(1, 10) if schedule.due(round)] == [3, 6, 9]


def test_the_first_comes_after_the_first_round():
    assert Schedule("auto", Clock()).due(1)


def test_cost_stays_below_two_per_cent():
    clock = Clock()
    schedule = Schedule("auto", clock)
    save(schedule, clock, waits=0.5, writes=1.5)
    clock.now += 99
    assert not schedule.due(2)
    clock.now += 1
    assert schedule.due(3)


@pytest.mark.slow
@pytest.mark.parametrize("seconds_a_round", [0.01, 1.0, 300.0])
def test_share_of_a_long_run(seconds_a_round):
    """Rounds of a few milliseconds to five minutes; a checkpoint costs 0.8 s, all of it
    in the way of training.
    """
    clock, long = Clock(), 20_000
    schedule, saved = Schedule("auto", clock), 0
    while clock.now < long:
        clock.now += seconds_a_round
        if schedule.due(1):
            save(schedule, clock, waits=0.8, writes=0.0)
            saved += 1
    assert 0.8 * saved / clock.now < 0.02
    assert saved >= min(long / seconds_a_round, long / 42) - 2


def test_a_finish_without_a_beginning_changes_nothing():
    clock = Clock()
    schedule = Schedule("auto", clock)
    schedule.finished(1000.0)
    assert schedule.due(1)
