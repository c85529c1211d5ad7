"""Devices drawn from stated distributions, and read from files (time.md §2)."""

import json
from fractions import Fraction

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.clients.training import Task
from hpcfl.clock.durations import (
    Devices,
    Duration,
    Work,
    count_epochs,
    describe_durations,
    draw_devices,
    find_share,
)
from hpcfl.experiment.sections import Time

MEDIAN = 10**9  # picoseconds per millisecond


def paces(clients, **keys):
    """Return the paces for a median device of one millisecond per sample."""
    drawn = draw_devices(Time(**keys), clients, 3, 1.0)
    assert all(type(number) is int for number in drawn.pace + drawn.down + drawn.up)
    return np.array(drawn.pace) / MEDIAN


def test_lognormal_devices_have_the_median_and_the_spread_of_the_keys():
    logs = np.log(paces(1000, sigma=0.6))
    assert abs(np.median(logs)) < 5 * 0.6 * 1.25 / np.sqrt(1000)
    assert abs(logs.std() - 0.6) < 5 * 0.6 / np.sqrt(2000)


def test_a_clients_speed_depends_only_on_seed_and_client():
    few, many = paces(5), paces(9)
    np.testing.assert_array_equal(few, many[:5])
    other = draw_devices(Time(), 5, 4, 1.0)
    assert other.pace != draw_devices(Time(), 5, 3, 1.0).pace


def test_equal_devices_are_equal_and_a_spread_of_zero_too():
    assert set(paces(5, devices="equal")) == set(paces(5, sigma=0.0)) == {1.0}


def test_zipf_by_hand():
    """The third fastest of five clients is the median: r/3 for exponent 1."""
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
    """Two rows for three clients, in turn: 2.5 ms of inference are 7.5·10^9 ps of
    training, 9,000 kbit/s are 9·10^6 bit/s in both directions.
    """
    file = tmp_path / "capacity.json"
    rows = [
        {"computation": 2.5, "communication": 9000},
        {"training": 40, "communication": 100.5},
    ]
    file.write_text(json.dumps({"a": rows[0], "b": rows[1]}))
    drawn = draw_devices(Time(devices="file", file=str(file)), 3, 1, 1.0)
    speeds = [9_000_000, 100_500, 9_000_000]
    paces = [7_500_000_000, 40_000_000_000, 7_500_000_000]
    assert drawn == Devices(paces, speeds, speeds, 50_000)
    file.write_text(json.dumps(rows))  # as a list
    assert draw_devices(Time(devices="file", file=str(file)), 3, 1, 1.0) == drawn


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x80\x04}", "JSON"),
        (b"{}", "capacity.json: "),
        (b'{"a": 3}', "'a': .* not 3"),
        (
            b'{"a": {"computation": true, "communication": 1}}',
            "'a.computation': .* not True",
        ),
        (b'{"a": {"communication": 1}}', "'a' .*'computation'.*'training'"),
        (
            b'{"a": {"computation": 1, "training": 3, "communication": 1}}',
            "'a' .*'computation'.*'training'",
        ),
        (b'{"a": {}, "a": {}}', "JSON, 'a' "),
        (
            b'{"a": {"computation": 1, "communication": 1e999}}',
            "'a.communication': .* not inf",
        ),
    ],
)
def test_an_invalid_device_file_is_refused(tmp_path, content, expected):
    file = tmp_path / "capacity.json"
    file.write_bytes(content)
    with expect_refusal(expected):
        draw_devices(Time(devices="file", file=str(file)), 3, 1, 1.0)
    with expect_refusal("none: "):
        draw_devices(Time(devices="file", file=str(tmp_path / "none")), 3, 1, 1.0)


# 2.5 ms per sample; 1 Mbit/s down, 0.4 up; 50 ms in each direction
DEVICES = Devices([2_500_000_000], [1_000_000], [400_000], 50_000)


def duration(passes, epochs, down, up, samples):
    return Duration(DEVICES, Work(passes, epochs, down, up), [samples])


def test_ticks_by_hand():
    """Two passes over 30 samples: 150,000 µs. 1,000 floats of 32 bits: 32,000 µs down
    and 80,000 µs up. Latency: twice 50,000 µs.
    """
    floats = Fraction(1000)
    assert duration(Fraction(2), 2, floats, floats, 30).count_ticks(0, 2) == 362_000
    # one of two epochs
    assert duration(Fraction(2), 2, floats, floats, 30).count_ticks(0, 1) == 287_000


def test_parts_of_a_tick_are_rounded_up():
    """Passes of 1/7 over 1 sample: 357.1… µs; one bit up at 0.4 Mbit/s: 2.5 µs."""
    found = duration(Fraction(1, 7), 1, Fraction(0), Fraction(1, 32), 1)
    assert found.count_ticks(0, 1) == 358 + 3 + 100_000


def test_whole_epochs_that_fit():
    """An epoch of 40 samples takes 100,000 µs, and messages take 100,000 µs."""
    found = duration(Fraction(3), 3, Fraction(0), Fraction(0), 40)
    whole = [
        found.count_epochs_within(0, ticks) for ticks in (199_999, 200_000, 399_999)
    ]
    assert whole == [0, 1, 2]
    assert found.count_epochs_within(0, 10**9) == 3


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_shares_and_epochs_are_those_of_training(epochs):
    for done in range(1, epochs + 1):
        assert count_epochs(find_share(done, epochs), epochs) == done
    for percent in range(101):
        share = percent / 100
        task = Task(0, 1, None, [], epochs, np.array([share]))
        assert task.count_epochs(0) == count_epochs(share, epochs)


def test_devices_are_described_from_the_fastest_to_the_slowest_client():
    devices = draw_devices(Time(devices="lognormal"), 9, 3, 5.0)
    work = Work(Fraction(1), 1, Fraction(100), Fraction(100))
    work, _, pace, *others = describe_durations(Duration(devices, work, [4] * 9))
    assert work.startswith("time: in a round a client makes 1 ")
    numbers = [float(cell) for cell in pace.removeprefix("time: ms a sample").split()]
    assert len(others) == 4 and len(numbers) == 5
    assert numbers == sorted(numbers) and numbers[0] < 5 < numbers[-1]
