"""APFL: Deng et al., Algorithm 1 and equation (10)."""

import numpy as np
import pytest
import torch

from hpcfl.methods.apfl import APFL


def test_a_step_by_hand(make_fleet):
    """F = ½(y − 0.9)² in each of P parameters, w = 0, v = 2, α = 0.5, so v̄ = 1 and g =
    0.1 everywhere.

    η = 0.001: w ← 0 + 0.001·0.9; v ← 2 − 0.001·0.5·0.1; α ← 0.5 − 0.001·P·(2 − 0)·0.1.
    """
    fleet = make_fleet([[4, 0, 0, 0]], lr=0.001, lanes=1)
    fleet.loss = lambda model, batch, lane: sum(
        (p - 0.9).square().sum() / 2 for p in model.parameters()
    )
    width = fleet.layout.width
    fleet.state |= {
        "personal": torch.full((1, width), 2.0),
        "alpha": torch.tensor([[0.5]]),
    }
    message = APFL(name="apfl").update(fleet, {"model": torch.zeros(width)})
    np.testing.assert_allclose(message["model"].tensor, 0.0009, rtol=1e-5)
    np.testing.assert_allclose(fleet.state["personal"], 1.99995, rtol=1e-6)
    np.testing.assert_allclose(fleet.state["alpha"], 0.5 - 0.0002 * width, rtol=1e-5)


def test_the_share_stays_between_zero_and_one(make_fleet):
    fleet = make_fleet([[4, 0, 0, 0]], lr=1.0, lanes=1)
    fleet.loss = lambda model, batch, lane: sum(
        (p - 0.9).square().sum() / 2 for p in model.parameters()
    )
    fleet.state |= {
        "personal": torch.full((1, fleet.layout.width), 2.0),
        "alpha": torch.tensor([[0.5]]),
    }
    APFL(name="apfl").update(fleet, {"model": torch.zeros(fleet.layout.width)})
    assert fleet.state["alpha"].item() == 0


@pytest.mark.slow
def test_the_shared_model_is_fedavgs(federate):
    for part in (
        {},
        {"participation": {"fraction": 0.6}},
        {"training": {"momentum": 0.9}},
    ):
        torch.testing.assert_close(
            federate("apfl", **part).server["model"],
            federate("fedavg", **part).server["model"],
        )


def test_without_a_share_of_its_own_it_is_fedavg(federate):
    played = federate(
        {
            "name": "apfl",
            "alpha": 0.0,
            "adaptive": False,
        }
    )
    fedavg = federate("fedavg")
    for column in ("clients/pre/loss", "clients/post/loss"):
        np.testing.assert_allclose(
            played.values[column], fedavg.values[column], rtol=1e-5
        )
    assert torch.equal(
        played.clients["personal"], played.prepared.setup.initial().expand(5, -1)
    )


@pytest.mark.slow
def test_with_all_of_its_own_it_is_local(federate):
    played = federate(
        {
            "name": "apfl",
            "alpha": 1.0,
            "adaptive": False,
        }
    )
    torch.testing.assert_close(
        played.clients["personal"], federate("local").clients["model"]
    )
    np.testing.assert_allclose(
        played.values["clients/post/loss"][:-1],
        federate("local").values["clients/post/loss"][:-1],
        rtol=1e-5,
    )
