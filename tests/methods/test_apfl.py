"""APFL: Deng et al., Algorithm 1 and equation (10)."""

import numpy as np
import pytest
import torch
from by_hand import quadratic

from hpcfl.methods.apfl import APFL


@pytest.fixture
def updated(make_fleet):
    """Return ``updated(lr)``, which returns a client and its message after a step for F
    = ½(y − 0.9)² in each of P parameters, from w = 0, v = 2 and α = 0.5.
    """

    def update(lr):
        fleet = make_fleet([[4, 0, 0, 0]], lr=lr, lanes=1)
        fleet.loss = quadratic(0.9)
        width = fleet.layout.width
        fleet.state["personal"] = torch.full((1, width), 2.0)
        fleet.state["alpha"] = torch.tensor([[0.5]])
        return fleet, APFL(name="apfl").update(fleet, {"model": torch.zeros(width)})

    return update


def test_a_step_by_hand(updated):
    """v̄ = 1 and g = 0.1 everywhere. η = 0.001: w ← 0 + 0.001·0.9; v ← 2 −
    0.001·0.5·0.1; α ← 0.5 − 0.001·P·(2 − 0)·0.1.
    """
    fleet, message = updated(lr=0.001)
    alpha = 0.5 - 0.0002 * fleet.layout.width
    np.testing.assert_allclose(message["model"].tensor, 0.0009, rtol=1e-5)
    np.testing.assert_allclose(fleet.state["personal"], 1.99995, rtol=1e-6)
    np.testing.assert_allclose(fleet.state["alpha"], alpha, rtol=1e-5)


def test_the_share_stays_between_zero_and_one(updated):
    fleet, _ = updated(lr=1.0)
    assert fleet.state["alpha"].item() == 0
