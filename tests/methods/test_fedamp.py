"""FedAMP: methods-1.md §9. ξ_ij = (α/σ) exp(−D²/σ), u_i = (1 − Σ_j ξ_ij) w_i + Σ_j ξ_ij
w_j.
"""

import math

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.experiment import config
from hpcfl.methods.fedamp import FedAMP


def method(**keys):
    return FedAMP(name="fedamp", **keys)


def attention(models, **keys):
    everyone = torch.arange(len(models))
    return method(**keys).compute_attraction(models, everyone, everyone)


def draw():
    return torch.randn(
        6, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )


def test_anchors_of_three_models_by_hand(cohort):
    # On a line: w = 0, 1, 3 with α = ½, σ = 2: ξ = ¼ e^(−D²/2), so ξ_01 = ¼e^(−½), ξ_02
    # = ¼e^(−4.5), ξ_12 = ¼e^(−2).
    near, far, middle = (0.25 * math.exp(-x) for x in (0.5, 4.5, 2.0))
    server = {
        "models": torch.tensor([[0.0], [1.0], [3.0]]),
        "uploaded": torch.ones(3, dtype=torch.bool),
    }
    anchor = method(alpha=0.5, sigma=2.0).send(server, cohort(np.ones((3, 2))))[
        "anchor"
    ]
    expected = [near + 3 * far, 1 - near + 2 * middle, 3 - 3 * far - 2 * middle]
    assert anchor[:, 0].tolist() == pytest.approx(expected, rel=1e-6)


def test_alpha_zero_needs_a_strength():
    with expect_refusal(r"method: alpha = 0 .*'proximal'"):
        config.parse({"method": {"name": "fedamp", "alpha": 0.0}})


def test_cap_turns_extrapolation_into_a_mean():
    models = 1e-3 * draw()
    assert (attention(models).sum(1) > 1).all()  # α/σ = 10,000
    capped = attention(models, cap=True)
    torch.testing.assert_close(capped.sum(1), torch.ones(6).double())
    assert (capped >= 0).all()
    far = {"alpha": 0.1, "sigma": 9.0}
    assert torch.equal(attention(draw(), **far, cap=True), attention(draw(), **far))


def test_relative_width_does_not_depend_on_the_scale():
    models = draw()
    xi, larger = (
        attention(scale * models, alpha=1.0, sigma=0.5, relative=True) * scale**2
        for scale in (1, 100)
    )
    torch.testing.assert_close(xi, larger)


def test_relative_width_does_not_depend_on_the_receivers(cohort):
    """Otherwise the frequency of scoring would change the results, because scored rounds
    have more receivers.
    """
    server = {
        "models": torch.tensor([[0.0], [1.0], [9.0]]),
        "uploaded": torch.tensor([True, True, False]),
    }
    fewer, all_three = (
        method(relative=True).send(server, cohort(np.ones((count, 2))))["anchor"]
        for count in (2, 3)
    )
    assert torch.equal(fewer, all_three[:2])


def test_relative_width_of_equal_models_is_sigma():
    """The median squared distance is 0, so it gives no scale."""
    models = draw()[:1].repeat(3, 1)
    assert torch.equal(attention(models, relative=True), attention(models))
