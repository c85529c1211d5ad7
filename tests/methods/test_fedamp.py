"""FedAMP: methods-1.md §9. ξ_ij = (α/σ) exp(−D²/σ), u_i = (1 − Σ_j ξ_ij) w_i + Σ_j ξ_ij
w_j.
"""

import math

import numpy as np
import pytest
import tiny
import torch

from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.methods.fedamp import FedAMP
from hpcfl.rows import mixing


def method(**keys):
    return FedAMP(name="fedamp", **keys)


def attention(models, **keys):
    return method(**keys).attraction(
        mixing.distances(models, models), torch.eye(len(models), dtype=torch.bool)
    )


def draw(clients=6, width=12):
    return torch.randn(
        clients, width, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )


def test_fedamp_5_by_hand(cohort):
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


def test_fedamp_10_lambda_zero_is_local(federate):
    assert torch.equal(
        federate({"name": "fedamp", "lam": 0.0}).clients["model"],
        federate("local").clients["model"],
    )


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_fedamp_9_the_proximal_term_acts(federate, fraction):
    """Written with detached tensors, as the widespread code does, it would train Local."""
    keys = {"participation": {"fraction": fraction}, "rounds": 5}
    federated = federate(
        {
            "name": "fedamp",
            "lam": 0.3,
            "alpha": 0.3,
            "sigma": 3.0,
        },
        **keys,
    )
    assert not torch.equal(
        federated.clients["model"], federate("local", **keys).clients["model"]
    )


def test_fedamp_9_the_term_is_squared(make_fleet, rows_of):
    """One full batch: the step differs from Local's by lr·(λ/α)·(w − u)."""
    rows, anchors = (
        rows_of(make_fleet(dtype=torch.float64)),
        rows_of(make_fleet(dtype=torch.float64), seed=2),
    )

    def trained(keys, inbox):
        fleet = make_fleet(dtype=torch.float64, batch_size=100, lr=0.1)
        fleet.state["model"] = rows.clone()
        return method(**keys).update(fleet, inbox)["model"]

    pulled = trained({"alpha": 2.0, "lam": 0.5}, {"anchor": anchors})
    expected = trained({}, {}) - 0.1 * 0.25 * (rows - anchors)
    torch.testing.assert_close(pulled, expected, rtol=1e-12, atol=1e-14)


def test_fedamp_9_no_anchor_in_round_1(cohort):
    server = {"models": torch.zeros(2, 3), "uploaded": torch.zeros(2, dtype=torch.bool)}
    assert method().send(server, cohort(np.ones((2, 2)))) == {}


def test_fedamp_10_mixing_matrix_is_symmetric_and_rows_sum_to_one(cohort):
    models = draw()
    xi = attention(models, alpha=3.0, sigma=9.0)
    assert torch.equal(xi, xi.T) and (xi > 0).sum() == 30
    server = {"models": models.float(), "uploaded": torch.ones(6, dtype=torch.bool)}
    anchor = method(alpha=3.0, sigma=9.0).send(server, cohort(np.ones((6, 2))))[
        "anchor"
    ]
    # so the mean is preserved
    torch.testing.assert_close(
        anchor.mean(0), models.float().mean(0), rtol=1e-5, atol=1e-6
    )


def test_fedamp_10_alpha_zero_anchors_every_client_at_itself(cohort):
    server = {"models": draw().float(), "uploaded": torch.ones(6, dtype=torch.bool)}
    own = method(alpha=0.0, proximal=0.5)
    assert torch.equal(
        own.send(server, cohort(np.ones((6, 2))))["anchor"], server["models"]
    )
    assert own.strength() == 0.5


def test_fedamp_alpha_zero_needs_a_strength():
    with pytest.raises(UserError, match="give 'proximal'"):
        config.parse({"method": {"name": "fedamp", "alpha": 0.0}})


def test_fedamp_cap_turns_extrapolation_into_a_mean():
    models = 1e-3 * draw()
    assert (attention(models).sum(1) > 1).all()  # α/σ = 10,000
    capped = attention(models, cap=True)
    torch.testing.assert_close(capped.sum(1), torch.ones(6).double())
    assert (capped >= 0).all()
    assert torch.equal(
        attention(
            draw(),
            alpha=0.1,
            sigma=9.0,
            cap=True,
        ),
        attention(draw(), alpha=0.1, sigma=9.0),
    )


def test_fedamp_relative_width_does_not_depend_on_the_scale():
    models = draw()
    xi, larger = (
        attention(scale * models, alpha=1.0, sigma=0.5, relative=True) * scale**2
        for scale in (1, 100)
    )
    torch.testing.assert_close(xi, larger)


def test_fedamp_5_underflows_to_zero_for_distant_models():
    assert torch.equal(attention(100 * draw()), torch.zeros(6, 6).double())


def test_fedamp_5_attends_to_the_last_uploads_only(cohort):
    server = {
        "models": draw().float(),
        "uploaded": torch.tensor([1, 0, 0, 1, 0, 0]).bool(),
    }
    keys = {"alpha": 3.0, "sigma": 9.0}
    anchor = method(**keys).send(server, cohort(np.ones((6, 2))))["anchor"]
    fewer = {
        "models": server["models"][[0, 3]],
        "uploaded": torch.ones(2, dtype=torch.bool),
    }
    assert torch.equal(
        method(**keys).send(fewer, cohort(np.ones((2, 2))))["anchor"], anchor[[0, 3]]
    )
    changed = {
        **server,
        "models": server["models"].index_fill(0, torch.tensor([1, 2]), 7.0),
    }
    assert torch.equal(
        method(**keys).send(changed, cohort(np.ones((6, 2))))["anchor"][[0, 3, 4, 5]],
        anchor[[0, 3, 4, 5]],
    )


def test_fedamp_with_ala_trains_from_the_blend(federate):
    plain, blended = (
        federate({"name": "fedamp", "alpha": 1.0, "sigma": 3.0, "ala": ala}, tiny.FEW)
        for ala in (False, True)
    )
    assert not torch.equal(plain.clients["model"], blended.clients["model"])
    assert (
        (blended.clients["ala.weights"] >= 0) & (blended.clients["ala.weights"] <= 1)
    ).all()


def test_fedamp_5_those_who_uploaded_last_are_those_of_the_last_cohort(cohort):
    server = {"models": torch.zeros(3, 1), "uploaded": torch.ones(3, dtype=torch.bool)}
    method().aggregate(
        server, cohort(np.ones((2, 2)), ids=[0, 2]), {"model": torch.ones(2, 1)}
    )
    assert server["uploaded"].tolist() == [True, False, True] and server["models"][
        :, 0
    ].tolist() == [1, 0, 1]
