"""FedAdagrad: methods-3.md §18."""

import pytest
import torch

from hpcfl.methods.fedadagrad import FedAdagrad


def test_two_rounds_by_hand():
    """β₁ = 0, τ = 10⁻³, η = 0.1, w = 1, so v = 10⁻⁶ initially.

    Mean model 1.5: Δ = ½, v = 0.250001, and w changes by 0.1·½/(0.500001 + 0.001) =
    0.0998. Then Δ = ½ again: v = 0.500001, and 0.1·½/(0.707107 + 0.001) = 0.070611.
    """
    method = FedAdagrad(name="fedadagrad")
    server = {
        "model": torch.ones(1),
        "first": torch.zeros(1),
        "second": torch.full((1,), 1e-6),
    }
    for second, step in ((0.250001, 0.0998), (0.500001, 0.070611)):
        before = server["model"]
        method.aggregate(server, None, {"model": before + 0.5})
        assert (server["model"] - before).item() == pytest.approx(step, abs=1e-6)
        assert server["second"].item() == pytest.approx(second)
