"""FedNova: methods-3.md §3."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from by_hand import Quadratics

from hpcfl.methods.fednova import FedNova

COUNTS = [[8, 0, 0, 0], [0, 8, 8, 0], [0, 4, 0, 4]]  # 2, 4 and 2 steps of four samples


def constant(model, batch, lane):
    """A loss with gradient 1 in every parameter."""
    return sum(parameter.sum() for parameter in model.parameters())


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_the_effective_steps_are_the_weights_of_the_gradients(make_fleet, momentum, mu):
    """For gradients that are all 1 the change is η times the sum of their weights.

    The closed formulas for momentum only and for μ only hold with τ = 2, 4 and 2 steps.
    """
    fleet = make_fleet(COUNTS, lr=0.2, momentum=momentum)
    fleet.loss = constant
    method = FedNova(name="fednova", mu=mu)
    start = torch.zeros(3, fleet.layout.width)
    trained, steps, effective = method.train_and_count(
        fleet, start, {"model": start[0]}
    )
    assert steps[:, 0].tolist() == [2, 4, 2]
    np.testing.assert_allclose(-trained / 0.2, effective.expand_as(trained), rtol=1e-5)
    taken, eta = steps.double(), 0.2
    if not mu:
        rho = momentum
        closed = (taken - rho * (1 - rho**taken) / (1 - rho)) / (1 - rho)
    elif not momentum:
        closed = (1 - (1 - eta * mu) ** taken) / (eta * mu)
    else:
        return
    np.testing.assert_allclose(effective, closed, rtol=1e-6)


class Two(Quadratics, FedNova):
    """FedNova in which client 0 minimises ½(x − 4)² and client 1 ½(x − 8)²."""

    centres: ClassVar = (4.0, 8.0)


def test_two_rounds_of_unequal_steps_by_hand(federate):
    """η = ½, one step 0 → 2 and three 0 → 4 → 6 → 7, p = ½ each.

    τ_eff = (1 + 3)/2 = 2 and w = 2·½·(2/1 + 7/3) = 13/3, where FedAvg has 4.5. With a
    server momentum of ½ and a second round: from 13/3 to 25/6 in one step, to 181/24 in
    three; −1/6 and 77/24, so that the step is ½·13/3 + (−1/6 + 77/72).
    """
    method = {"name": "methods.test_fednova:Two", "weights": "uniform"}
    few = [[4, 0, 0, 0], [0, 12, 0, 0]]
    training = {"batch_size": 4, "lr": 0.5}
    played = federate(method, few, rounds=1, training=training)
    np.testing.assert_allclose(played.server["model"], 13 / 3, rtol=1e-6)
    again = {**method, "server_momentum": 0.5}
    played = federate(again, few, rounds=2, training=training)
    expected = 13 / 3 + 13 / 6 - 1 / 6 + 77 / 72
    np.testing.assert_allclose(played.server["model"], expected, rtol=1e-6)


def test_steps_that_follow_samples_make_it_fedavg_with_a_larger_step(
    federate,
):
    """τ = (2, 4, 2) ∝ N: w⁰ + |S|Στ²/(Στ)² = 3·24/64 times the uniform mean's change."""
    nova = federate("fednova", COUNTS, rounds=1)
    uniform = federate({"name": "fedavg", "weights": "uniform"}, COUNTS, rounds=1)
    initial = nova.prepared.setup.initial()
    expected = torch.lerp(initial, uniform.server["model"], 3 * 24 / 64)
    torch.testing.assert_close(nova.server["model"], expected)


def test_adam_counts_steps(federate):
    """The effective steps of Adam depend on neither a client's momentum nor its
    proximal term.
    """
    played = federate("fednova", COUNTS, rounds=1, training={"optimizer": "adam"})
    fleet = played.prepared.make_fleet(np.arange(3), 1, is_scored=False)
    start = fleet.rows(played.prepared.setup.initial())
    method = FedNova(name="fednova", mu=0.5)
    _, steps, effective = method.train_and_count(fleet, start, {"model": start[0]})
    assert torch.equal(steps, effective) and steps[:, 0].tolist() == [2, 4, 2]
