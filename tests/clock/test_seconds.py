"""How long a client is at work, by hand (time.md §3)."""

from fractions import Fraction

import numpy as np
import pytest

from hpcfl.clients.training import Task
from hpcfl.clock.devices import Devices
from hpcfl.clock.seconds import Duration, Work, epochs_of, in_seconds, share_of

# 2.5 ms a sample; 1 Mbit/s down, 0.4 up; 50 ms each way
DEVICES = Devices([2_500_000_000], [1_000_000], [400_000], 50_000)


def duration(passes, epochs, down, up, samples):
    return Duration(DEVICES, Work(passes, epochs, down, up), [samples])


def test_ticks_by_hand():
    """Two passes over 30 samples: 150,000 µs. 1,000 floats of 32 bits: 32,000 µs down
    and 80,000 µs up. Twice 50,000 µs beside.
    """
    floats = Fraction(1000)
    assert duration(Fraction(2), 2, floats, floats, 30).ticks(0, 2) == 362_000
    # of two epochs one
    assert duration(Fraction(2), 2, floats, floats, 30).ticks(0, 1) == 287_000


def test_parts_of_a_tick_are_rounded_up():
    """Passes of 1/7 over 1 sample: 357.1… µs; one bit up at 0.4 Mbit/s: 2.5 µs."""
    found = duration(Fraction(1, 7), 1, Fraction(0), Fraction(1, 32), 1)
    assert found.ticks(0, 1) == 358 + 3 + 100_000


def test_whole_epochs_that_fit():
    """An epoch of 40 samples takes 100,000 µs, and messages take 100,000 µs."""
    found = duration(Fraction(3), 3, Fraction(0), Fraction(0), 40)
    whole = [found.epochs_within(0, ticks) for ticks in (199_999, 200_000, 399_999)]
    assert whole == [0, 1, 2]
    assert found.epochs_within(0, 10**9) == 3


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_shares_and_epochs_are_those_of_training(epochs):
    for done in range(1, epochs + 1):
        assert epochs_of(share_of(done, epochs), epochs) == done
    for percent in range(101):
        share = percent / 100
        task = Task(1, None, [], epochs, np.array([share]))
        assert task.epochs_of([0]).item() == epochs_of(share, epochs)


def test_ticks_in_seconds():
    assert in_seconds(1_500_000) == 1.5
