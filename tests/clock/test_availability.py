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


def test_everybody_is_always_on_by_default():
    assert availability.make_availability(Time(), 3, 1).find_period(2, 10**15) == (
        0,
        FOREVER,
    )


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
    on = availability.make_availability(
        Time(availability="day", zones=3, hours=8.0), 60, 1
    )
    begins = {on.find_period(client, DAY)[0] % DAY for client in range(60)}
    assert begins == {0, DAY // 3, 2 * (DAY // 3)}


def test_a_file_by_hand(tmp_path):
    """Online in [0, 10) and [20, 30) of 30 seconds, repeated."""
    file = tmp_path / "on.json"
    row = {
        "active": [0, 20],
        "inactive": [10, 30],
        "finish_time": 30,
    }
    file.write_text(
        json.dumps(
            [
                row,
                {
                    "active": [],
                    "inactive": [],
                    "finish_time": 5,
                },
            ]
        )
    )
    keys = {"availability": "file", "availability_file": str(file)}
    on = availability.make_availability(Time(**keys), 4, 1)
    seconds = [on.find_period(2, tick * SECOND) for tick in (0, 9, 10, 29, 30, 40, 55)]
    assert [(begin // SECOND, end // SECOND) for begin, end in seconds] == [
        (0, 10),
        (0, 10),
        (20, 30),
        (20, 30),
        (30, 40),
        (50, 60),
        (50, 60),
    ]
    assert on.find_period(1, 0) == (FOREVER, FOREVER)
    for wrong in (
        {"active": [5, 3]},
        {"inactive": [10, 40]},
        {"active": [0, 10]},
        {"active": [20, 0], "inactive": [30, 10]},
    ):
        file.write_text(json.dumps([row | wrong]))
        with expect_refusal("client '0': 'active' and 'inactive' "):
            availability.make_availability(Time(**keys), 4, 1)
    file.write_text(json.dumps([row | {"inactive": [30]}]))
    with expect_refusal("entry 1 "):
        availability.make_availability(Time(**keys), 4, 1)
    file.write_text(json.dumps([row | {"inactive": []}]))
    with expect_refusal("2 times in 'active' and 0 "):
        availability.make_availability(Time(**keys), 4, 1)
    for number in ("x", -1, True, None):
        file.write_text(json.dumps([row | {"active": [0, number]}]))
        with expect_refusal(rf"'0\.active\.1': .*, not {number!r}"):
            availability.make_availability(Time(**keys), 4, 1)


def test_a_file_in_which_a_client_stays_on_until_its_end():
    traced = Traced([([(5, 30)], 30)])
    assert traced.find_period(0, 29) == (5, 30)
    assert traced.find_period(0, 30) == (35, 60)


MODELS = [
    {"availability": "day", "hours": 6.0},
    {
        "availability": "markov",
        "on": 100.0,
        "off": 300.0,
    },
]


@pytest.mark.parametrize("keys", MODELS)
def test_periods_are_the_same_from_any_first_question(keys):
    """A period ends after the given tick, and begins at or after it unless the client
    is online.
    """
    forwards = availability.make_availability(Time(**keys), 3, 1)
    ticks = range(0, 40 * DAY // 24, 97 * SECOND)
    found = [forwards.find_period(2, tick) for tick in ticks]
    for tick, (begin, end) in zip(ticks, found, strict=True):
        assert begin < end and end > tick
    backwards = availability.make_availability(Time(**keys), 3, 1)
    assert [backwards.find_period(2, tick) for tick in reversed(ticks)] == found[::-1]


@pytest.mark.parametrize("keys", MODELS)
def test_clients_are_on_for_their_share_of_the_time(keys):
    clients, share = 1000, 0.25
    on = availability.make_availability(Time(**keys), clients, 5)
    late = DAY // 48
    here = [on.find_period(client, late)[0] <= late for client in range(clients)]
    # three standard deviations of a share of independent clients
    assert abs(np.mean(here) - share) < 3 * np.sqrt(share * (1 - share) / clients)


def test_alternating_periods_are_the_sums_of_their_lengths():
    """Over the edges of several blocks; −m ln u of the client's keyed numbers u."""
    keys = {
        "availability": "markov",
        "on": 100.0,
        "off": 300.0,
    }
    for seed in (1, 2, 3, 4):
        on = availability.make_availability(Time(**keys), 3, seed)
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
