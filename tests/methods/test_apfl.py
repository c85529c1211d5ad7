"""APFL: Deng et al., Algorithm 1 and equation (10)."""

import numpy as np
import torch
from by_hand import quadratic

from hpcfl.methods.apfl import APFL


def test_a_step_by_hand(make_fleet):
    """F = ½(y − 0.9)² in each of P parameters, w = 0, v = 2, α = 0.5, so v̄ = 1 and g =
    0.1 everywhere.

    η = 0.001: w ← 0 + 0.001·0.9; v ← 2 − 0.001·0.5·0.1; α ← 0.5 − 0.001·P·(2 − 0)·0.1.
    """
    fleet = make_fleet([[4, 0, 0, 0]], lr=0.001, lanes=1)
    fleet.loss = quadratic(0.9)
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
    fleet.loss = quadratic(0.9)
    fleet.state |= {
        "personal": torch.full((1, fleet.layout.width), 2.0),
        "alpha": torch.tensor([[0.5]]),
    }
    APFL(name="apfl").update(fleet, {"model": torch.zeros(fleet.layout.width)})
    assert fleet.state["alpha"].item() == 0
