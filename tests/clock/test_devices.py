"""Devices drawn from stated distributions, and read from files (time.md §2)."""

import json
from statistics import NormalDist

import numpy as np
import pytest

from hpcfl.clock import devices, exact
from hpcfl.clock.devices import Devices
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness

MEDIAN = 10**9  # picoseconds in a millisecond


def paces(clients, **keys):
    """The paces where the median device takes a millisecond for a sample."""
    drawn = devices.draw(Time(**keys), clients, 3, 1.0)
    assert all(type(number) is int for number in drawn.pace + drawn.down + drawn.up)
    return np.array(drawn.pace) / MEDIAN


def test_a_normal_number_is_one():
    random = randomness.generator(1, "test")
    drawn = sorted(float(exact.normal(random)) for _ in range(1000))
    places = (np.arange(1000) + 0.5) / 1000
    expected = np.array([NormalDist().inv_cdf(place) for place in places])
    # Kolmogorov-Smirnov, whose 0.001 quantile is 1.95/√n
    found = np.array([NormalDist().cdf(number) for number in drawn])
    assert np.abs(found - places).max() < 1.95 / np.sqrt(1000)
    assert np.abs(np.array(drawn) - expected)[100:-100].max() < 0.25


def test_lognormal_devices_have_the_median_and_the_spread_of_the_keys():
    logs = np.log(paces(1000, sigma=0.6))
    assert abs(np.median(logs)) < 5 * 0.6 * 1.25 / np.sqrt(1000)
    assert abs(logs.std() - 0.6) < 5 * 0.6 / np.sqrt(2000)


def test_who_is_how_fast_follows_seed_and_client_alone():
    few, many = paces(5), paces(9)
    np.testing.assert_array_equal(few, many[:5])
    other = devices.draw(Time(), 5, 4, 1.0)
    assert other.pace != devices.draw(Time(), 5, 3, 1.0).pace


def test_equal_devices_are_equal_and_a_spread_of_zero_too():
    assert set(paces(5, devices="equal")) == set(paces(5, sigma=0.0)) == {1.0}


def test_zipf_by_hand():
    """Of five clients the third fastest is the median: r/3 for exponent 1."""
    found = sorted(paces(5, devices="zipf"))
    np.testing.assert_allclose(found, np.array([1, 2, 3, 4, 5]) / 3)


def test_pareto_devices_are_slower_than_the_fastest_up_to_a_limit():
    found = paces(
        1000,
        devices="pareto",
        exponent=1.0,
        slowest=10.0,
    )
    assert found.min() >= 1 and found.max() == 10
    for place, share in ((2, 1 / 2), (4, 1 / 4)):  # P(X > x) = 1/x
        assert abs((found > place).mean() - share) < 5 * np.sqrt(share / 1000)


def test_classes_have_their_shares_and_factors():
    found = paces(
        1000,
        devices="classes",
        shares=[1.0, 3.0],
        factors=[1.0, 2.5],
    )
    assert set(found) == {1.0, 2.5}
    assert abs((found == 1).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 1000)


def test_a_file_in_the_form_of_fedscale_by_hand(tmp_path):
    """Two rows for three clients, in turn: 2.5 ms of inference are 7.5·10^9 ps of training,
    9,000 kbit/s are 9·10^6 bit/s both ways.
    """
    file = tmp_path / "capacity.json"
    rows = [
        {"computation": 2.5, "communication": 9000},
        {"training": 40, "communication": 100.5},
    ]
    file.write_text(json.dumps({"a": rows[0], "b": rows[1]}))
    drawn = devices.draw(Time(devices="file", file=str(file)), 3, 1, 1.0)
    speeds = [9_000_000, 100_500, 9_000_000]
    paces = [7_500_000_000, 40_000_000_000, 7_500_000_000]
    assert drawn == Devices(paces, speeds, speeds, 50_000)
    file.write_text(json.dumps(rows))  # as a list
    assert devices.draw(Time(devices="file", file=str(file)), 3, 1, 1.0) == drawn


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x04}", "is not JSON"),
        (b"{}", "must hold a row"),
        (b'{"a": 3}', "client 'a' must be a table"),
        (b'{"a": {"computation": 3}}', "must have a number as 'communication'"),
        (b'{"a": {"computation": 0, "communication": 1}}', "'computation' .* is 0"),
        (
            b'{"a": {"computation": true, "communication": 1}}',
            "number as 'computation'",
        ),
        (b'{"a": {"communication": 1}}', "either 'computation'"),
        (
            b'{"a": {"computation": 1, "training": 3, "communication": 1}}',
            "either 'computation'",
        ),
        (b'{"a": {}, "a": {}}', "'a' stands twice"),
        (
            b'{"a": {"computation": -1, "communication": 1}}',
            "'computation' .* is -1",
        ),
        (
            b'{"a": {"computation": 1, "communication": 1e999}}',
            "'communication' .* is inf",
        ),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path, content, said):
    file = tmp_path / "capacity.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=said):
        devices.draw(Time(devices="file", file=str(file)), 3, 1, 1.0)
    with pytest.raises(UserError, match="cannot be read"):
        devices.draw(Time(devices="file", file=str(tmp_path / "none")), 3, 1, 1.0)
