"""Classes spread over clients in Dirichlet proportions: protocols.md D2."""

import numpy as np
import pytest

from hpcfl.data.partitions import _dirichlet, dirichlet
from hpcfl.data.partitions.dirichlet import plugin
from hpcfl.errors import UserError
from hpcfl.rows import randomness

LABELS = np.repeat(np.arange(100), 600)  # CIFAR-100, merged


@pytest.mark.parametrize(
    ("beta", "reported"), [(0.01, 12), (0.1, 46), (0.5, 85), (1.0, 94)]
)
def test_d2_classes_per_client_are_those_of_cwfedavg_table_3(beta, reported):
    held = []
    for seed in range(10):
        assignment = plugin(beta=beta).assign(
            LABELS, 100, randomness.generator(seed, "partition")
        )
        held += [len(np.unique(LABELS[samples])) for samples in assignment.samples]
    assert abs(np.mean(held) - reported) <= 2


def test_d2_all_samples_go_to_one_client_each_and_none_is_too_small():
    assignment = plugin().assign(LABELS, 100, np.random.default_rng(0))
    assert sorted(np.concatenate(assignment.samples)) == list(range(len(LABELS)))
    assert min(map(len, assignment.samples)) >= 40


def test_d2_a_client_at_the_mean_gets_no_more():
    shares = _dirichlet.shares_of(
        np.array([True, False, True]), 0.1, np.random.default_rng(0)
    )
    assert shares[1] == 0 and shares.sum() == pytest.approx(1)


def test_d2_the_last_client_gets_the_rest_of_rounding(monkeypatch):
    """Even where its share is 0: cuts are the floors of cumulated shares, here 2.5, 5
    and 9.99… of ten samples.
    """
    shares = np.array([0.25, 0.25, 0.4999999, 0.0])
    monkeypatch.setattr(_dirichlet, "shares_of", lambda *given: shares)
    drawn = _dirichlet.spread([np.arange(10)], 4, 0.1, np.random.default_rng(0))
    assert (
        [len(held) for held in drawn.samples()] == drawn.sizes.tolist() == [2, 3, 4, 1]
    )
    assert sorted(np.concatenate(drawn.samples())) == list(range(10))


def test_d2_shares_that_underflow_are_drawn_again():
    open_clients = np.arange(20) == 7
    shares = _dirichlet.shares_of(open_clients, 1e-4, np.random.default_rng(0))
    assert shares.tolist() == open_clients.tolist()


def test_d2_small_draws_are_redrawn_and_counted():
    labels = np.arange(100) % 10
    assert (
        plugin(clients=20, beta=0.1)
        .assign(labels, 10, np.random.default_rng(0))
        .attempts
        > 1
    )


def test_d2_giving_up_tells_the_numbers(monkeypatch):
    for module in (dirichlet, _dirichlet):
        monkeypatch.setattr(module, "CAP", 20)
    with pytest.raises(
        UserError,
        match="in 20 attempts never did each of 90 clients get 2 of 100 samples",
    ):
        plugin(clients=90).assign(np.arange(100) % 10, 10, np.random.default_rng(0))
    with pytest.raises(UserError, match="too small"):
        _dirichlet.shares_of(np.array([False, False]), 0.1, np.random.default_rng(0))
