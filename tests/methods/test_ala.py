"""Adaptive local aggregation: methods-1.md §6. v is the client's last model, g the
received model, Ω the weights, ŵ = v + Ω⊙(g − v).
"""

import numpy as np
import pytest
import torch
from by_hand import loss_of, quadratic
from tiny import COUNTS

from hpcfl.clients import Fleet
from hpcfl.methods.options.ala import AdaptiveLocalAggregation

FEW = COUNTS[:2]


@pytest.fixture
def activated(make_fleet, rows_of):
    """Return a fleet whose clients have trained before, with state v, Ω, rounds, and a
    received model g ``[P]``.
    """

    def make(counts=FEW, rounds=2, omega=0.5, layers=1, **keys):
        usual = {"dtype": torch.float64, "batch_size": 100, "round": rounds + 1}
        fleet = make_fleet(counts, **{**usual, **keys})
        upper, model = fleet.layout.columns(layers), rows_of(fleet, 1)
        fleet.state |= {
            "model": model,
            "ala.weights": torch.full_like(model[:, upper], omega),
            "ala.rounds": torch.full((len(counts), 1), rounds),
        }
        return fleet, rows_of(fleet, 2)[0], upper

    return make


def test_one_step_by_hand(make_fleet):
    """A linear model with v = 0 and g = 1 in the biases, one sample.

    Ω = ½, so the biases are ½ and all weights 0: the logits are equal, p = ¼ each, h =
    p − e_y for the biases. With η = 1 and Δ = 1, Ω of the biases becomes ½ − (p − e_y)
    = ¼, and for class y ½ + ¾ → clipped to 1.
    """
    fleet = make_fleet([[0, 0, 1, 0]], hidden=(), batch_size=100, round=3)
    width = fleet.layout.width
    g = torch.zeros(width)
    g[-4:] = 1
    fleet.state = {
        "model": torch.zeros(1, width),
        "ala.weights": torch.full((1, width), 0.5),
        "ala.rounds": torch.full((1, 1), 2),
    }
    blended = AdaptiveLocalAggregation().adapt(fleet, g)
    expected = torch.tensor([0.25, 0.25, 1.0, 0.25])
    torch.testing.assert_close(fleet.state["ala.weights"][0, -4:], expected)
    torch.testing.assert_close(blended[0, -4:], expected)
    assert (fleet.state["ala.weights"][0, :-4] == 0.5).all()  # Δ = 0 there


@pytest.mark.parametrize("rounds", [1, 2])
def test_weights_are_adapted_only_in_the_initial_stage(activated, rounds):
    """Afterwards Ω is constant, and the last and the received model are blended with
    it.
    """
    fleet, g, _ = activated(rounds=rounds)
    other, _, _ = activated(rounds=rounds)
    before, own = fleet.state["ala.weights"], fleet.state["model"]
    initial = AdaptiveLocalAggregation(most_epochs=12, adaptation="initial")
    blended = initial.adapt(fleet, g)
    always = AdaptiveLocalAggregation(most_epochs=12).adapt(other, g)
    if rounds == 1:  # the first activation is the same
        assert torch.equal(blended, always)
        assert not torch.equal(fleet.state["ala.weights"], before)
        return
    assert torch.equal(fleet.state["ala.weights"], before)
    assert not torch.equal(other.state["ala.weights"], before)
    upper = fleet.layout.columns(1)
    received = fleet.rows(g)
    by_hand = own[:, upper] + before * (received - own)[:, upper]
    torch.testing.assert_close(blended[:, upper], by_hand)
    below = slice(upper.start)
    assert torch.equal(blended[:, below], received[:, below])


@pytest.mark.parametrize("rounds", [1, 2])
def test_ala_ends_when_it_has_converged_for_stragglers_too(activated, rounds):
    """In the first activation, with many epochs, and in later ones."""
    found = []
    for pace in (None, np.zeros(len(FEW))):
        fleet, g, _ = activated(rounds=rounds)
        fleet.pace = pace
        blended = AdaptiveLocalAggregation(most_epochs=30).adapt(fleet, g)
        found.append((blended, fleet.state["ala.weights"]))
        assert fleet.pace is pace
    assert all(map(torch.equal, *found))


def epochs_of(fleet, g, share=1.0, **keys):
    """Return the number of mini-batches in which each client trained its blending
    weights; by default one batch is one epoch.
    """
    count = torch.zeros(len(fleet.ids))
    original = Fleet.train_by

    def counting(self, step, *rest, **how):
        def counted(context):
            for weights in context.variables["own"]:
                match = (fleet.state["model"][:, -weights.numel() :] == weights).all(1)
                count[match] += 1
            step(context)

        return original(self, counted, *rest, **how)

    Fleet.train_by = counting
    try:
        AdaptiveLocalAggregation(share=share, **keys).adapt(fleet, g)
    finally:
        Fleet.train_by = original
    return count.tolist()


def alone(fleet, g, upper, client, ended):
    """Return Ω of one client and its losses, trained by plain gradient descent with η =
    5 until ``ended`` of the losses.
    """
    v, losses = fleet.state["model"][client], []
    omega = torch.full_like(v[upper], 0.5)
    while not ended(losses):
        blended = torch.cat(
            [g[: upper.start], v[upper] + omega * (g - v)[upper]]
        ).requires_grad_()
        loss = loss_of(fleet, client, blended)
        (gradient,) = torch.autograd.grad(loss, blended)
        omega = (omega - 5 * gradient[upper] * (g - v)[upper]).clamp(0, 1)
        losses.append(float(loss.detach()))
    return omega, losses


@pytest.mark.parametrize("threshold", [0.05, 0.02, 0.005])
def test_stops_where_the_last_ten_losses_vary_less_than_the_threshold(
    activated, threshold
):
    fleet, g, upper = activated(rounds=1)

    def ended(losses):
        return len(losses) > 10 and np.std(losses[-10:]) < threshold

    weights, losses = zip(
        *(alone(fleet, g, upper, client, ended) for client in range(2)), strict=True
    )
    epochs = epochs_of(fleet, g, threshold=threshold, eta=5.0)
    assert epochs == list(map(len, losses))
    torch.testing.assert_close(fleet.state["ala.weights"], torch.stack(weights))


def test_ends_after_the_most_epochs_at_the_latest(activated):
    fleet, g, _ = activated(rounds=1)
    assert epochs_of(fleet, g, threshold=0.0, most_epochs=12) == [12, 12]


def test_counts_the_federations_rounds_or_a_clients_own(activated):
    """Clients took part never, once and five times. In Algorithm 1 all of them train
    until convergence in round 2 and for one epoch in round 3. With rounds counted by
    client they copy, train until convergence, and train for one epoch.
    """
    three = [*FEW, [1, 0, 6, 6]]
    for round, activation, expected in (
        (2, "round", [11, 11, 11]),
        (3, "round", [1, 1, 1]),
        (2, "own", [0, 11, 1]),
        (3, "own", [0, 11, 1]),
    ):
        fleet, g, _ = activated(three, round=round)
        fleet.state["ala.rounds"] = torch.tensor([[0], [1], [5]])
        assert epochs_of(fleet, g, threshold=1e9, activation=activation) == expected
        assert fleet.state["ala.rounds"].tolist() == [[1], [2], [6]]


@pytest.mark.parametrize("lanes", [1, 2])
def test_batch_norm_takes_each_batchs_statistics_and_forgets_them(activated, lanes):
    """Ω follows the gradient of the model in training mode, as in the authors' code,
    also if batch norm is in copied layers.
    """
    fleet, g, upper = activated(
        dtype=torch.float32, lanes=lanes, model={"name": "tiny:normalised"}
    )
    v, buffers, learnt = fleet.state["model"], fleet.buffers().clone(), []
    for client in range(2):
        start = torch.cat(
            [g[: upper.start], torch.lerp(v[client, upper], g[upper], 0.5)]
        ).requires_grad_()
        fleet.resources.kernel.module.train()
        (slope,) = torch.autograd.grad(loss_of(fleet, client, start), start)
        learnt.append((0.5 - 0.01 * slope[upper] * (g - v[client])[upper]).clamp(0, 1))
    AdaptiveLocalAggregation(eta=0.01, share=1.0).adapt(fleet, g)
    torch.testing.assert_close(
        fleet.state["ala.weights"], torch.stack(learnt), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(fleet.state["buffers.model"], buffers)
    assert fleet.results.losses is None


@pytest.mark.parametrize(
    ("share", "samples"), [(1.0, [11, 1]), (0.8, [8, 1]), (0.05, [1, 1])]
)
def test_a_share_of_the_data_is_at_least_one_sample(activated, share, samples):
    fleet, g, _ = activated(counts=[[8, 3, 0, 0], [0, 1, 0, 0]], batch_size=1)
    assert epochs_of(fleet, g, share=share) == samples  # one sample per batch


def test_weights_are_trained_by_cross_entropy_under_any_objective(activated):
    """The loss inside ALA has no regulariser of the method."""
    fleet, g, _ = activated()
    other, _, _ = activated()
    other.loss = quadratic()
    for either in (fleet, other):
        AdaptiveLocalAggregation().adapt(either, g)
    weights = fleet.state["ala.weights"]
    assert torch.equal(other.state["ala.weights"], weights) and (weights != 0.5).any()
