"""pFedMe: methods-2.md §4."""

import numpy as np
import torch
from by_hand import quadratic
from refusals import expect_refusal

from hpcfl.methods.pfedme import PFedMe


def test_two_inner_steps_by_hand(make_fleet):
    # f = ½·4·θ², w = 2, K = 2, η_p = 0.01, λ = 15, μ = 1, η = 0.02: θ₁ = 2 − 0.01(8 + 0
    # + 2) = 1.9;  θ₂ = 1.9 − 0.01(7.6 + 15(1.9 − 2) + 1.9) = 1.9 − 0.08 = 1.82; w = 2 −
    # 0.3·0.18 = 1.946
    fleet = make_fleet([[3, 0, 0, 0]], lanes=1, lr=0.02)
    fleet.loss = quadratic(0.0, 4.0)
    fleet.state = {"personal": torch.zeros(1, fleet.layout.width)}
    message = PFedMe(name="pfedme", inner_steps=2, mu=1.0).update(
        fleet, {"model": torch.full((fleet.layout.width,), 2.0)}
    )
    np.testing.assert_allclose(fleet.state["personal"], 1.82, rtol=1e-5)
    np.testing.assert_allclose(message["model"].tensor, 1.946, rtol=1e-5)


def test_theta_starts_at_w_and_continues_across_batches(make_fleet):
    # two batches of f = ½θ², K = 1, η_p = 0.1, λ = 1, η = 0.5, w = 1: θ = 1 − 0.1 =
    # 0.9, w = 1 − 0.5·0.1 = 0.95;  θ = 0.9 − 0.1(0.9 + (0.9 − 0.95)) = 0.815, w = 0.95
    # − 0.5·0.135 = 0.8825
    fleet = make_fleet([[8, 0, 0, 0]], lanes=1, lr=0.5)
    fleet.loss = quadratic()
    fleet.state["personal"] = torch.full((1, fleet.layout.width), 77.0)
    method = PFedMe(name="pfedme", inner_steps=1, personal_lr=0.1, lam=1.0)
    message = method.update(fleet, {"model": torch.ones(fleet.layout.width)})
    np.testing.assert_allclose(fleet.state["personal"], 0.815, rtol=1e-6)
    np.testing.assert_allclose(message["model"].tensor, 0.8825, rtol=1e-6)


def test_beta_steps_and_extrapolates(cohort):
    # w = 1, average 3.5: β = 0.5 gives 2.25, β = 2 gives 6, β = 1 the average itself
    for beta, expected in ((0.5, 2.25), (2.0, 6.0), (1.0, 3.5)):
        server = {"model": torch.ones(1)}
        PFedMe(name="pfedme", beta=beta).aggregate(
            server, cohort([[1, 0], [2, 1]]), {"model": torch.tensor([3.5])}
        )
        assert server["model"].item() == expected


def test_refuses_inner_steps_that_diverge(federate):
    with expect_refusal(r"method: personal_lr · \(lam \+ mu\) = 3 .* 2"):
        federate({"name": "pfedme", "personal_lr": 0.1, "mu": 15.0})


def test_without_a_pull_the_shared_model_never_moves(federate):
    played = federate({"name": "pfedme", "lam": 0.0}, rounds=1)
    assert torch.equal(played.server["model"], played.prepared.setup.initial())
    assert (played.clients["personal"] != played.server["model"]).any(dim=1).all()
