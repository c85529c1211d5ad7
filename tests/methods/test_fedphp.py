"""FedPHP: methods-2.md §6."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.fedphp import FedPHP, compute_discrepancy
from hpcfl.models.mlp import MLP
from hpcfl.rows.layout import lay_out_parameters, make_row

ONE = [[6, 3, 2, 1]]


def test_discrepancy_by_hand():
    # one sample each at distance 2: the mean squared distance is 4, so k(x, y) = Σ_f
    # exp(−4/4f) and k(x, x) = 5
    across = sum(math.exp(-1 / factor) for factor in (0.25, 0.5, 1, 2, 4))
    value = compute_discrepancy(torch.tensor([[0.0]]), torch.tensor([[2.0]]))
    assert value.item() == pytest.approx(10 - 2 * across, rel=1e-6)
    fixed = compute_discrepancy(
        torch.tensor([[0.0]]), torch.tensor([[2.0]]), (20.0, 100.0)
    )
    assert fixed.item() == pytest.approx(
        4 - 2 * (math.exp(-0.2) + math.exp(-0.04)), rel=1e-5
    )


def test_momentum_counts_participations(make_fleet):
    """T = 3 rounds, ρ = 1, μ = 0.9: m = 0 first, then 0.9/3, 1.8/3, and at most μ;
    PFLlib's is μ·(round − 1)/T.

    A client is expected in ⌊ρT⌋ rounds, at least one.
    """
    fleet = make_fleet([[4, 0, 0, 0]] * 4, round=2)
    fleet.state = {
        "count": torch.tensor([[0], [1], [2], [7]]),
        "inherited": torch.zeros(4, 1),
    }
    np.testing.assert_allclose(
        FedPHP(name="fedphp").compute_momentum(fleet), [0, 0.3, 0.6, 0.9], rtol=1e-6
    )
    np.testing.assert_allclose(
        FedPHP(name="fedphp", variant="pfllib").compute_momentum(fleet),
        [0.3] * 4,
        rtol=1e-6,
    )
    for participation, expected in (
        (0.7, [0, 0.45, 0.9, 0.9]),
        (0.1, [0, 0.9, 0.9, 0.9]),
    ):
        object.__setattr__(fleet.setup, "participation", participation)
        np.testing.assert_allclose(
            FedPHP(name="fedphp").compute_momentum(fleet), expected, rtol=1e-6
        )


def test_inherits_by_hand(federate):
    """λ = 0, one client: θ_r is the server's model after round r, q_1 = θ_1, q_2 =
    0.45·q_1 + 0.55·θ_2 at μ = 0.9, T = 2, also for the statistics of batch norm.

    The supervised training of both runs is the same in round 1, since m depends on T
    only in round 2.
    """
    free = {"name": "fedphp", "lam": 0.0}
    first, second = (
        federate(free, ONE, rounds=rounds, model={"name": "tiny:normalised"})
        for rounds in (1, 2)
    )
    statistics, inherited = "buffers.model", "buffers.inherited"
    for found, one, other in (
        ("inherited", first.server["model"], second.server["model"]),
        (inherited, first.clients[statistics][0], second.clients[statistics][0]),
    ):
        assert torch.equal(first.clients[found][0], one)
        expected = 0.45 * one + 0.55 * other
        torch.testing.assert_close(second.clients[found][0], expected)
    assert second.clients["count"].tolist() == [[2]]
    assert (
        second.values["clients/post/loss"][1]
        != second.values["clients/trained/loss"][1]
    )


def test_loss_by_hand():
    """(1 − λ)·CE(θ) + λ·MMD² of the features of θ and of the inherited model."""
    own, inherited = (MLP((5,), 4, hidden=(6,)) for _ in range(2))
    batch = Batch(torch.randn(8, 5), torch.arange(8) % 4)
    row = make_row(lay_out_parameters(inherited), inherited)
    lane = Lane(inherited=row, statistics=None)
    loss = FedPHP(name="fedphp", lam=0.3).loss(own, batch, lane)
    features = own.features(batch.x), inherited.features(batch.x)
    expected = 0.7 * cross_entropy(own(batch.x), batch.y)
    expected += 0.3 * compute_discrepancy(*features)
    torch.testing.assert_close(loss, expected)
