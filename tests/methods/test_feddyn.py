"""FedDyn: methods-3.md §2."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from by_hand import Quadratics

from hpcfl.methods.feddyn import FedDyn

# two clients with four samples each, one full batch
SAME = [[4, 0, 0, 0], [0, 4, 0, 0]]
EXACT = {
    "batch_size": 4,
    "lr": 0.25,
    "epochs": 30,
}  # steps until the minimum


class Two(Quadratics, FedDyn):
    """FedDyn with ½θ² and 3/2·(θ − 4)²."""

    curvatures: ClassVar = (1.0, 3.0)
    centres: ClassVar = (0.0, 4.0)


def test_the_uploads_of_round_1_are_fedproxs(make_fleet):
    """All h_i are 0, and the anchor is w."""
    fleet, other = make_fleet(), make_fleet()
    model = fleet.setup.initial()
    fleet.state["dual"] = torch.zeros(5, len(model))
    found = FedDyn(name="feddyn", alpha=0.3).local_train(fleet, model, {"model": model})
    assert torch.equal(found, other.train(model, proximal=(0.3, model)))
    assert torch.equal(fleet.state["dual"], found - model)


def test_the_first_step_goes_twice_as_far(federate):
    """With all clients w¹ = θ̄ + (θ̄ − w⁰)."""
    played = federate({"name": "feddyn", "alpha": 0.3}, rounds=1)
    prox = {"name": "fedprox", "mu": 0.3, "weights": "uniform"}
    average = federate(prox, rounds=1).server["model"]
    initial = played.prepared.setup.initial()
    torch.testing.assert_close(played.server["model"], 2 * average - initial)
    assert played.values["average/weighted"].shape == (2,)


def test_the_servers_drift_is_the_mean_of_the_clients(federate):
    """The same holds if clients are absent; they keep h_i, bit for bit."""
    part = {"participation": {"fraction": 0.4}}
    ended = []
    for rounds in (2, 3):
        played = federate({"name": "feddyn", "alpha": 0.3}, rounds=rounds, **part)
        drift = played.clients["dual"].mean(dim=0)
        torch.testing.assert_close(played.server["drift"], drift)
        ended.append(played)
    trained = np.isfinite(played.values["clients/diverged"][2])
    moved = (ended[0].clients["dual"] != ended[1].clients["dual"]).any(dim=1)
    assert trained.sum() == 2
    np.testing.assert_array_equal(moved, trained)


@pytest.mark.slow
def test_the_model_reaches_the_optimum_and_stays(federate):
    """f₁ = ½θ², f₂ = 3/2·(θ − 4)², α = 1, each minimised exactly.

    θ₁ = 0 and, from 3(θ − 4) + θ = 0, θ₂ = 3; θ̄ = 3/2 and w = 3, where f₁ + f₂ is
    least: θ + 3(θ − 4) = 0. Then h = (0, 3): θ₁ = (w − h₁)/2 = 3/2, θ₂ = (12 + w −
    h₂)/4 = 3; h = (−3/2, 3), h̄ = 3/4 and w = 9/4 + 3/4 = 3 again.
    """
    method = {"name": "methods.test_feddyn:Two", "alpha": 1.0}
    for rounds in (1, 2):
        played = federate(method, SAME, rounds=rounds, training=EXACT)
        np.testing.assert_allclose(played.server["model"], 3, rtol=1e-6)
    duals = played.clients["dual"]
    np.testing.assert_allclose(duals[0], -1.5, rtol=1e-6)
    np.testing.assert_allclose(duals[1], 3, rtol=1e-6)


def test_a_clients_own_strength_falls_with_its_samples(make_fleet):
    """Clients have 6 and 2 samples, 4 on average: α_i = 0.3·4/6 and 0.3·4/2.

    One step from θ = 1 with h_i = −1 and w = 1 starts at a distance of θ − (w − h_i) =
    −1 from the anchor. The pull is −α_i, with η = 0.5 an additional step of 0.1 and
    0.3.
    """
    fleet = make_fleet([[6, 0, 0, 0], [2, 0, 0, 0]], lr=0.5, batch_size=100)
    method = FedDyn(name="feddyn", alpha=0.3, alpha_by="samples")
    model = torch.ones(fleet.layout.width)
    fleet.state["dual"] = -torch.ones(2, len(model))
    pulled = method.local_train(fleet, model, {"model": model})
    plain = fleet.train(model, phase="train again")
    np.testing.assert_allclose((pulled - plain)[0], 0.1, rtol=1e-5)
    np.testing.assert_allclose((pulled - plain)[1], 0.3, rtol=1e-5)
    # the squared length of that distance, α_i/2·P, is only in the objective
    term = torch.tensor([0.2, 0.6]).double() / 2 * len(model)
    fleet.state["dual"] = -torch.ones(2, len(model))
    fleet._phases.clear()
    method.local_train(fleet, model, {"model": model})
    torch.testing.assert_close(fleet.results.losses - fleet.results.data_losses, term)


def test_the_last_average_is_scored_separately_from_the_model(federate):
    values = federate("feddyn", rounds=2).values
    average, own = values["clients/average/loss"], values["clients/pre/loss"]
    np.testing.assert_array_equal(average[0], own[0])
    assert (average[1:] != own[1:]).all()
