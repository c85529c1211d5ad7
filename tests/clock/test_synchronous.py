"""Rounds that wait for their clients, by hand (time.md §4)."""

import numpy as np
import pytest
from timetables import synchronous

from hpcfl.clock.availability import Traced
from hpcfl.clock.calendar import compute_correlation, compute_gini, compute_jain
from hpcfl.clock.durations import SECOND

S = SECOND


def clients(step):
    return [job.client for job in step.jobs]


def test_a_round_lasts_as_long_as_its_slowest_client():
    timetable = synchronous([3 * S, 1 * S, 2 * S])
    first, second = timetable.step(), timetable.step()
    assert clients(first) == clients(second) == [0, 1, 2]
    assert (first.begun, first.ended, second.begun, second.ended) == (
        0,
        3 * S,
        3 * S,
        6 * S,
    )
    # 6 of 9 client-seconds of work
    assert first.compute_numbers()["time/idle"] == pytest.approx(1 / 3)
    assert first.compute_numbers()["time/in_flight"] == 2
    assert (
        first.compute_numbers()["time/wasted"]
        == first.compute_numbers()["time/lost"]
        == 0
    )


def test_a_deadline_between_the_second_and_the_third_arrival():
    """The third client works until the deadline without effect: 2.5 of 5.5 seconds."""
    step = synchronous([3 * S, 1 * S, 2 * S], deadline=2.5).step()
    assert clients(step) == [1, 2] and step.ended == 2.5 * S
    assert (step.busy, step.wasted, step.lost) == (5.5 * S, 2.5 * S, 1)


def test_a_client_that_arrives_at_the_deadline_counts():
    assert clients(synchronous([3 * S, 2 * S], deadline=2.0).step()) == [1]


def test_over_selection_uses_the_first_arrivals():
    """The server asks four clients and waits for two; ids resolve a tie."""
    keys = {"over_selection": 2.0, "participation": {"fraction": 0.5}}
    step = synchronous([2 * S, 3 * S, 2 * S, 2 * S], **keys).step()
    assert clients(step) == [0, 2] and step.ended == 2 * S and step.lost == 2


def test_over_selection_asks_for_a_whole_number_of_clients():
    """⌈1.3 · 10⌉ = 13, of which 3 have no effect; 1.1 · 10 is above 11 in floating
    point.
    """
    for factor, lost in ((1.3, 3), (1.1, 1), (1.0, 0)):
        keys = {"over_selection": factor, "participation": {"fraction": 0.5}}
        assert synchronous([S] * 20, **keys).step().lost == lost


def test_a_round_with_too_few_arrivals_has_no_step():
    ticks = [S, 3 * S, 3 * S, 3 * S]
    assert clients(synchronous(ticks, deadline=2.0, least=0.25).step()) == [0]
    failed = synchronous(ticks, deadline=2.0, least=0.26).step()
    assert clients(failed) == [] and failed.ended == 2 * S
    assert failed.wasted == failed.busy and failed.lost == 4


def test_part_of_the_epochs_where_not_all_fit():
    """4, 2 and 0 of 4 epochs of 1, 2 and 5 seconds fit into 4.5 seconds."""
    keys = {
        "epochs": 4,
        "deadline": 4.5,
        "late": "partial",
    }
    step = synchronous([S, 2 * S, 5 * S], **keys).step()
    assert [(job.client, job.share) for job in step.jobs] == [(0, 1.0), (1, 1.5 / 4)]


def test_unavailable_clients_lose_work_and_the_clock_skips_idle_time():
    """Client 0 is on in [0, 3), client 1 in [0, 2), of 10 seconds. Of 2.5 seconds of
    work client 1 does 2 without effect, and then no client is on until 10.
    """
    on = Traced([([(0, 3 * S)], 10 * S), ([(0, 2 * S)], 10 * S)])
    timetable = synchronous([2.5 * S, 2.5 * S], when=on)
    first = timetable.step()
    assert clients(first) == [0] and first.ended == 2.5 * S and first.lost == 1
    assert first.wasted == 2 * S
    second = timetable.step()  # only client 0 is on at 2.5, until 3
    assert clients(second) == [] and second.ended == 3 * S
    third = timetable.step()
    assert third.begun == 3 * S and third.ended == 12.5 * S
    assert [job.begun for job in third.jobs] == [10 * S]


def test_evenness_of_participation_by_hand():
    """For (0, 1, 3): (4)²/(3·10) = 8/15, and 2·(1 + 3 + 2)/(2·3·4) = 1/2."""
    assert compute_jain(np.array([0, 1, 3])) == pytest.approx(8 / 15)
    assert compute_gini(np.array([3, 0, 1])) == pytest.approx(1 / 2)
    assert compute_jain(np.ones(5)) == 1 and compute_gini(np.ones(5)) == 0
    assert np.isnan(compute_jain(np.zeros(3))) and np.isnan(compute_gini(np.zeros(3)))


def test_correlation_of_participation_and_speed_by_hand():
    """Counts 2, 1, 0 and paces 1, 2, 6: deviations 1, 0, −1 and −2, −1, 3, so the
    correlation is −5/√(2·14).
    """
    counts, paces = np.array([2.0, 1, 0]), np.array([1.0, 2, 6])
    assert compute_correlation(counts, paces) == pytest.approx(-5 / np.sqrt(28))
    assert np.isnan(compute_correlation(np.ones(3), paces))
    assert np.isnan(compute_correlation(counts, np.ones(3)))
