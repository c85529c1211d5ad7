"""Privacy loss of a run."""

import logging
import math

import pytest

from hpcfl.updates.accounting import Guarantee, import_library
from hpcfl.updates.clipping import split_noise

DELTA = 1e-5
POISSON = Guarantee("poisson", 1000, 100, "rdp", DELTA)
FIXED = Guarantee("fixed", 1000, 100, "rdp", DELTA)


@pytest.mark.parametrize(
    ("guarantee", "sigma", "rounds", "epsilon"),
    [
        (Guarantee("poisson", 1000, 10, "rdp", DELTA), 1.1, 1000, 1.711770),
        (POISSON, 1.0, 100, 7.903850),
        (FIXED, 2.0, 100, 14.053750),
        (Guarantee("local", 7, 7, "rdp", DELTA), 4.0, 10, 8.0794),
        (Guarantee("local", 7, 7, "pld", DELTA), 4.0, 10, 7.5113),
        (Guarantee("fixed", 50, 50, "rdp", DELTA), 2.0, 10, 8.0794),
    ],
)
def test_epsilon_equals_the_table(guarantee, sigma, rounds, epsilon):
    assert guarantee.compute_epsilon(sigma, rounds) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.slow
def test_distributions_are_tighter_than_divergences():
    for size, sigma, rounds, expected in [
        (10, 1.1, 1000, 1.515370),
        (100, 1.0, 100, 7.046603),
    ]:
        tight = Guarantee("poisson", 1000, size, "pld", DELTA)
        epsilon = tight.compute_epsilon(sigma, rounds)
        assert epsilon == pytest.approx(expected, rel=1e-3)
        loose = Guarantee("poisson", 1000, size, "rdp", DELTA)
        assert epsilon < loose.compute_epsilon(sigma, rounds)


@pytest.mark.slow
def test_a_calibrated_multiplier_costs_the_requested_epsilon():
    sigma = POISSON.calibrate(8.0, {1.0: 100})
    assert sigma == pytest.approx(0.993726, abs=1e-5)
    assert POISSON.compute_epsilon(sigma, 100) == pytest.approx(8.0, abs=1e-3)
    assert POISSON.compute_epsilon(sigma, 100) <= 8.0


@pytest.mark.parametrize("epsilon", [1e6, 200.0, 0.5])
def test_any_budget_has_a_multiplier(epsilon):
    every = Guarantee("fixed", 50, 50, "rdp", DELTA)
    sigma = every.calibrate(epsilon, {1.0: 10})
    assert every.compute_epsilon(sigma, 10) == pytest.approx(epsilon, rel=0.01)


def test_model_and_count_together_cost_the_multiplier():
    """σ = 1 and σ_b = 5 give σ_Δ = 1.005038; the multiplier of the count is 10."""
    library = import_library()
    releases = [library.GaussianDpEvent(split_noise(1.0, 5.0))]
    releases.append(library.GaussianDpEvent(10.0))
    together = library.ComposedDpEvent(releases)
    accountant = POISSON.make_accountant()
    accountant.compose(library.PoissonSampledDpEvent(0.1, together), 100)
    assert accountant.get_epsilon(DELTA) == pytest.approx(7.903850, rel=1e-6)


def test_excluded_orders_are_in_the_debug_log_alone(caplog):
    caplog.set_level(logging.DEBUG, logger="hpcfl")
    assert POISSON.compute_epsilon(1.01, 1) > 0
    excluded = [record for record in caplog.records if "Excluding" in record.message]
    assert {record.name for record in excluded} == {"hpcfl"}


def test_no_round_costs_nothing_and_no_noise_everything():
    assert POISSON.compute_epsilon(1.0, 0) == 0
    assert POISSON.compute_epsilon(0.0, 1) == math.inf
    assert 0 < POISSON.compute_epsilon(1.0, 1) < POISSON.compute_epsilon(1.0, 2)


def test_the_adjacency_follows_from_the_cohort():
    assert FIXED.replaces_one and not POISSON.replaces_one
    assert not Guarantee("fixed", 50, 50, "rdp", DELTA).replaces_one
    assert "q = 0.1" in POISSON.describe_sampling()
    assert "replace one client" in FIXED.describe_sampling()
