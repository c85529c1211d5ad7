"""Steps of an asynchronous server, by hand, and properties of every timetable (time.md
§5, §6).
"""

import itertools

import numpy as np
import pytest
from refusals import expect_refusal
from timetables import asynchronous

from hpcfl.clock.availability import Traced
from hpcfl.clock.durations import SECOND

S = SECOND


def steps(timetable, count):
    return [timetable.step() for _ in range(count)]


def list_jobs(step):
    """Return the clients of a step with their start versions."""
    return [(job.client, job.version) for job in step.jobs]


def test_two_clients_by_hand():
    """Client 0 takes 1 second, client 1 takes 2.5; each arrival is a step. Client 0
    arrives at 1, 2 and 3 from versions 0, 1 and 2, client 1 at 2.5 from version 0, with
    a staleness of two.
    """
    found = steps(asynchronous([S, int(2.5 * S)], buffer=1), 4)
    assert [list_jobs(step) for step in found] == [
        [(0, 0)],
        [(0, 1)],
        [(1, 0)],
        [(0, 2)],
    ]
    assert [step.ended for step in found] == [S, 2 * S, 2.5 * S, 3 * S]
    assert [step.staleness for step in found] == [[0], [0], [2], [1]]
    assert all(step.compute_numbers()["time/idle"] == 0 for step in found)


def test_equally_fast_clients_give_synchronous_cohorts():
    """Five of ten clients in flight and five arrivals per step give the cohorts of
    ``choose``.
    """
    timetable = asynchronous(
        [S] * 10, buffer=5, participation={"fraction": 0.5, "dropout": 0.0}
    )
    draws = timetable._draws
    everybody = np.ones(10, bool)
    for number, step in enumerate(steps(timetable, 6), start=1):
        drawn = np.sort(draws.choose(everybody, 5, (number,)))
        assert step.cohort.tolist() == drawn.tolist()
        assert set(step.staleness) == {0} and step.ended == number * S


def test_ties_go_to_the_lower_clients():
    """At tick 1 s clients 0, 1 and 2 arrive and client 3 is lost. With K = 2 the lower
    two make a step, the third begins the next buffer, and all four places are filled
    from the new version. Client 2, whose upload is in the buffer, does not start.
    """
    always = [(0, 1000 * S)], 1000 * S
    until_one = [(0, S), (S + 1, 1000 * S)], 1000 * S
    on = Traced([always, always, always, until_one, always, always])
    ticks = [S, S, S, 2 * S, 9 * S, 9 * S]
    timetable = asynchronous(ticks, buffer=2, concurrency=4, when=on)
    timetable._draws = Lowest()
    first, second = steps(timetable, 2)
    assert list_jobs(first) == [(0, 0), (1, 0)]
    assert first.ended == S and first.lost == 0
    # Clients 0, 1, 4 and 5 start at 1 s: client 3 is off and client 2's upload is in
    # the buffer.
    assert list_jobs(second) == [(0, 1), (2, 0)] and second.lost == 1
    assert second.ended == 2 * S


class Lowest:
    """Draws that always select the lowest clients."""

    clients = 6

    def choose(self, candidates, count, key):
        return np.flatnonzero(candidates)[:count]

    def drop_lost(self, drawn, key):
        return drawn

    def draw_epoch_shares(self, chosen, key):
        return None


def test_staler_updates_are_dropped():
    """As above, but client 1 has a staleness of two at 2.5 s and starts again at once."""
    found = steps(asynchronous([S, int(2.5 * S)], buffer=1, max_staleness=1), 4)
    assert [list_jobs(step) for step in found] == [
        [(0, 0)],
        [(0, 1)],
        [(0, 2)],
        [(0, 3)],
    ]
    assert [step.lost for step in found] == [0, 0, 1, 0]
    assert found[2].wasted == 2.5 * S


def test_a_step_follows_every_period():
    """Steps at 2, 4 and 6 s; the upload of client 0 is in the buffer from 1.5 s, 3.5 s
    … on.
    """
    timetable = asynchronous(
        [int(1.5 * S), int(4.5 * S)], rule="semi", period=2.0, concurrency=2
    )
    found = steps(timetable, 3)
    assert [step.ended for step in found] == [2 * S, 4 * S, 6 * S]
    assert [list_jobs(step) for step in found] == [[(0, 0)], [(0, 1)], [(0, 2), (1, 0)]]


def test_a_dropped_client_keeps_its_place_until_it_would_have_arrived():
    timetable = asynchronous(
        [S, 2 * S], buffer=1, participation={"dropout": 0.9}, concurrency=2
    )
    found = steps(timetable, 30)
    assert sum(step.lost for step in found) > 0
    assert all(step.busy <= 2 * (step.ended - step.begun) for step in found)


UNEQUAL = [*range(S, 13 * S, S)]
TWO_OF_SIX = {"concurrency": 6, "buffer": 2}
MARKOV = {"availability": "markov", "on": 30.0, "off": 20.0}
LOSSES = {"participation": {"dropout": 0.5}}
CASES = {
    "even": ([S] * 12, {"concurrency": 6, "buffer": 6}),
    "all clients in a buffer, one at work": (
        UNEQUAL,
        {"concurrency": 1, "buffer": 12},
    ),
    "losses in every second job": (
        UNEQUAL,
        {"concurrency": 4, "buffer": 3, **LOSSES},
    ),
    "stale": (UNEQUAL, {**TWO_OF_SIX, "max_staleness": 2}),
    "coming and going": (UNEQUAL, {**TWO_OF_SIX, **MARKOV}),
    "every period": (UNEQUAL, {"concurrency": 6, "rule": "semi", "period": 2.5}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_timetable_is_consistent(case):
    ticks, keys = CASES[case]
    found = steps(asynchronous(ticks, **keys), 40)
    jobs = [job for step in found for job in step.jobs]
    for number, step in enumerate(found, start=1):
        assert step.number == number
        if keys.get("rule") != "semi":
            assert len(step.jobs) == keys["buffer"]
        assert 0 < len(step.jobs) == len(set(step.cohort.tolist()))
        assert step.cohort.tolist() == sorted(step.cohort)
        assert min(step.staleness) >= 0
        assert max(step.staleness) <= keys.get("max_staleness", 10**6)
        for job in step.jobs:
            whole = (job.client, job.version, job.begun, job.ended)
            assert all(type(value) is int for value in whole)
            assert found[job.version - 1].ended <= job.begun or not job.version
            assert job.begun < job.ended <= step.ended
    for before, after in itertools.pairwise(found):
        assert before.ended <= after.begun
    # No client has two jobs at once, or two from one version.
    assert len({(job.client, job.version) for job in jobs}) == len(jobs)
    for client in range(len(ticks)):
        own = sorted((job.begun, job.ended) for job in jobs if job.client == client)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(own))
    # at most C clients in flight
    for job in jobs:
        beside = [one for one in jobs if one.begun <= job.begun < one.ended]
        assert len(beside) <= keys["concurrency"]
    again = steps(asynchronous(ticks, **keys), 60)
    assert again[:40] == found


def test_a_buffer_larger_than_the_clients_is_refused():
    with expect_refusal(r"time\.buffer = 3"):
        asynchronous([S, S], buffer=3)


def test_clients_that_never_finish_are_refused():
    on = Traced([([(0, S)], 10 * S)])
    with expect_refusal(r"\[time\]: after round 0 .* 201 "):
        asynchronous([2 * S, 2 * S], buffer=1, when=on).step()
    with expect_refusal(r"time\.availability: after round 0 "):
        asynchronous([S], buffer=1, when=Traced([([], S)])).step()


def test_default_sizes_of_buffers():
    assert asynchronous([S] * 30)._size == 10
    assert asynchronous([S] * 30, concurrency=4)._size == 4
    assert asynchronous([S] * 30, rule="fedasync")._size == 1
