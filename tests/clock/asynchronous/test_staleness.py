"""Weights of late updates, by hand (time.md §5)."""

import pytest

from hpcfl.clock.asynchronous.staleness import Staleness
from hpcfl.experiment.sections import Time

# by staleness, in units of 2^−16: (1 + τ)^−1/2; and 1 up to 4, then 1/(10(τ − 4) + 1)
UNITS = {
    "constant": {
        0: 65536,
        4: 65536,
        14: 65536,
    },
    "polynomial": {
        0: 65536,
        3: 32768,
        4: 29309,
        5: 26755,
        14: 16921,
    },
    "hinge": {
        0: 65536,
        4: 65536,
        5: 5958,
        14: 649,
    },
}


def staleness(largest=60, **keys):
    return Staleness.from_largest_weight(Time(mode="asynchronous", **keys), largest)


@pytest.mark.parametrize("kind", UNITS)
def test_units_by_hand(kind):
    found = staleness(staleness=kind)
    assert {late: found.count_units(late) for late in UNITS[kind]} == UNITS[kind]


def test_staleness_weights_are_integers_with_exact_products():
    """2^20 samples leave 28 − 21 bits; if no client is late, the weights are the
    samples.
    """
    found = staleness(largest=2**20)
    assert found.bits == 7 and found.compute_weights([0, 3]) == [128, 64]
    assert found.compute_weights([0, 0]) == [1, 1]
    assert staleness(a=1000.0).count_units(9) == 1  # never 0


def test_the_rate_of_a_step():
    """The mean of 1 and ½, times the server's rate or FedAsync's α."""
    assert staleness().compute_rate([0, 0]) == 1
    assert staleness(server_lr=0.5).compute_rate([0, 3]) == 0.375
    assert staleness(rule="fedasync", alpha=0.5).compute_rate([3]) == 0.25
