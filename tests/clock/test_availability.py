"""Online periods of clients, by hand, and shares of time (time.md §2)."""

import json
from decimal import Decimal

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.clock import availability, exact
from hpcfl.clock.availability import DAY, FOREVER, Daily, OnlineClients, Traced
from hpcfl.clock.durations import SECOND
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness


def make_availability(clients=3, seed=1, **keys):
    return availability.make_availability(Time(**keys), clients, seed)


def test_all_clients_are_always_on_by_default():
    assert make_availability().find_period(2, 10**15) == (0, FOREVER)


def test_a_day_by_hand():
    """Online from hour 22 for 4 hours, until hour 2 of the next day."""
    hour = DAY // 24
    on = Daily([22 * hour], 4 * hour)
    assert on.find_period(0, 0) == (-2 * hour, 2 * hour)
    assert on.find_period(0, 2 * hour - 1) == (-2 * hour, 2 * hour)
    assert on.find_period(0, 2 * hour) == (22 * hour, 26 * hour)
    assert on.find_period(0, 22 * hour) == (22 * hour, 26 * hour)
    assert on.find_period(0, 25 * hour) == (22 * hour, 26 * hour)


def test_clients_of_three_time_zones_come_on_at_three_hours():
    on = make_availability(60, availability="day", zones=3, hours=8.0)
    begins = {on.find_period(client, DAY)[0] % DAY for client in range(60)}
    assert begins == {0, DAY // 3, 2 * (DAY // 3)}


def test_a_file_by_hand(tmp_path):
    """Online in [0, 10) and [20, 30) of 30 seconds, repeated: from 20 to 40 without a
    break.
    """
    file = tmp_path / "on.json"
    never = {"active": [], "inactive": [], "finish_time": 5}
    file.write_text(json.dumps([ROW, never]))
    on = make_availability(4, availability="file", availability_file=str(file))
    expected = {0: -10, 9: -10, 10: 20, 29: 20, 30: 20, 40: 50, 55: 50}
    for second, begin in expected.items():
        period = begin * SECOND, (begin + 20) * SECOND
        assert on.find_period(2, second * SECOND) == period
    assert on.find_period(1, 0) == (FOREVER, FOREVER)


ROW = {"active": [0, 20], "inactive": [10, 30], "finish_time": 30}
TIMES = "client '0': 'active' and 'inactive' "


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"inactive": [10, 40]}, TIMES),
        ({"active": [0, 10]}, TIMES),
        ({"active": [20, 0], "inactive": [30, 10]}, TIMES),
        ({"inactive": [30]}, "entry 1 "),
        ({"inactive": []}, "2 times in 'active' and 0 "),
        ({"active": [0, -1]}, r"'0\.active\.1': .*, not -1"),
        ({"active": [0, True]}, r"'0\.active\.1': .*, not True"),
    ],
    ids=str,
)
def test_a_file_with_wrong_times_is_refused(tmp_path, wrong, words):
    file = tmp_path / "on.json"
    file.write_text(json.dumps([ROW | wrong]))
    with expect_refusal(words):
        make_availability(availability="file", availability_file=str(file))


def test_a_period_until_the_end_of_the_file():
    traced = Traced([([(5, 30)], 30)])
    assert traced.find_period(0, 29) == (5, 30)
    assert traced.find_period(0, 30) == (35, 60)


def test_a_client_that_a_file_never_takes_offline_stays_online():
    assert Traced([([(0, 30)], 30)]).find_period(0, 45) == (0, FOREVER)


def test_periods_of_a_file_with_three_periods():
    traced = Traced([([(0, 5), (10, 15), (25, 30)], 30)])
    joined = {0: (-5, 5), 4: (-5, 5), 5: (10, 15), 15: (25, 35), 34: (25, 35)}
    joined |= {35: (40, 45), 45: (55, 65)}
    assert {tick: traced.find_period(0, tick) for tick in joined} == joined
    apart = Traced([([(5, 10), (20, 30)], 30)])
    periods = {0: (5, 10), 9: (5, 10), 10: (20, 30), 30: (35, 40), 59: (50, 60)}
    assert {tick: apart.find_period(0, tick) for tick in periods} == periods


MARKOV = {"availability": "markov", "on": 100.0, "off": 300.0}
MODELS = [{"availability": "day", "hours": 6.0}, MARKOV]


@pytest.mark.parametrize("keys", MODELS)
def test_periods_are_the_same_from_any_first_question(keys):
    """A period ends after the given tick, and begins at or after it unless the client
    is online.
    """
    forwards = make_availability(**keys)
    ticks = range(0, 40 * DAY // 24, 97 * SECOND)
    found = [forwards.find_period(2, tick) for tick in ticks]
    for tick, (begin, end) in zip(ticks, found, strict=True):
        assert begin < end and end > tick
    backwards = make_availability(**keys)
    assert [backwards.find_period(2, tick) for tick in reversed(ticks)] == found[::-1]


@pytest.mark.parametrize("keys", MODELS)
def test_clients_are_on_for_their_share_of_the_time(keys):
    clients, share = 1000, 0.25
    on = make_availability(clients, 5, **keys)
    late = DAY // 48
    here = [on.find_period(client, late)[0] <= late for client in range(clients)]
    # three standard deviations of a share of independent clients
    assert abs(np.mean(here) - share) < 3 * np.sqrt(share * (1 - share) / clients)


def test_alternating_periods_are_the_sums_of_their_lengths():
    """Over the edges of several blocks; −m ln u of the client's keyed numbers u."""
    for seed in (1, 2, 3, 4):
        on = make_availability(3, seed, **MARKOV)
        first, _ = on.find_period(2, 0)
        means = [Decimal(100 * SECOND), Decimal(300 * SECOND)]
        uniforms = 1 - randomness.generator(seed, "period", 2).random(100)
        if first > 0:  # off at first
            means.reverse()
        edges = [0, *np.cumsum(exact.draw_exponentials(uniforms, means * 50)).tolist()]
        for number in range(100 - 2):
            begins_on = (number % 2 == 0) == (first == 0)
            place = number if begins_on else number + 1
            expected = edges[place], edges[place + 1]
            assert on.find_period(2, edges[number]) == expected
            assert on.find_period(2, edges[number + 1] - 1) == expected


def test_clients_are_on_at_ascending_ticks():
    online = OnlineClients(Traced([([(0, 10)], 30), ([(5, 20)], 30)]), 2)
    everybody = np.array([True, True])
    assert online.advance(0).tolist() == [True, False]
    assert online.find_next_online(everybody) == 5 and online.get_period_end(0) == 10
    assert online.advance(7).tolist() == [True, True]
    assert online.find_next_online(everybody) == FOREVER
    assert online.advance(10).tolist() == [False, True]
    assert online.find_next_online(everybody) == 30
    assert online.find_next_online(np.array([False, True])) == FOREVER
