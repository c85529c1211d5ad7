"""DiversiFed: methods-1.md §7. D distances, d = D/τ, s = softmax of d over the other
clients, β = α(1/n − s)/(τD).
"""

import math

import pytest
import torch

from hpcfl.methods.diversifed import DiversiFed, compute_forces
from hpcfl.rows import mixing


def full(models):
    """Return A [M, M] at full participation, and β, for α = τ = 1."""
    distances = mixing.compute_distances(models, models)
    itself = torch.eye(len(models), dtype=torch.bool)
    beta = compute_forces(distances, itself, alpha=1.0, tau=1.0)
    return beta + torch.diag(1 - beta.sum(1)), beta


def draw(clients=6, spread=1.0):
    return spread * torch.randn(
        clients, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )


def diversity(own, others, tau):
    """Return L_d(w_i) = (1/n) Σ_j log s_ij of one client, by the paper's formula."""
    scaled = torch.stack([(own - other).norm() / tau for other in others])
    return (scaled - scaled.logsumexp(0)).mean()


def test_weights_of_three_models_by_hand():
    # On a line: w = 0, 1, 3 and τ = α = 1. Client 0: D = (1, 3), s = (e/(e+e³),
    # e³/(e+e³)) = (0.1192, 0.8808), n = 2: β_01 = (½ − 0.1192)/1 = 0.3808, β_02 = (½ −
    # 0.8808)/3 = −0.1269; z_0 = 0.3808·1 − 0.1269·3 = 0.0000 (they cancel).
    a, beta = full(torch.tensor([[0.0], [1.0], [3.0]]).double())
    s = math.e / (math.e + math.e**3)
    assert beta[0].tolist() == pytest.approx([0, 0.5 - s, (s - 0.5) / 3])
    assert a[0].tolist() == pytest.approx(
        [1 - (0.5 - s) * 2 / 3, 0.5 - s, (s - 0.5) / 3]
    )
    # Client 1: D = (1, 2), both sides: s = (e/(e+e²), e²/(e+e²)) = (0.2689, 0.7311)
    s = math.e / (math.e + math.e**2)
    assert beta[1].tolist() == pytest.approx([0.5 - s, 0, (s - 0.5) / 2])


def test_weights_stay_finite_for_far_equal_few_and_no_other_models():
    far, _ = full(draw(spread=1e4))  # without the subtracted maximum exp overflows
    assert far.isfinite().all()
    twins = draw()
    twins[1] = twins[0]
    a, beta = full(twins)
    assert (
        a.isfinite().all() and beta[0, 1] == beta[1, 0] == 0
    )  # equal models do not attract or repel each other
    # one other client: β = 0
    assert torch.equal(full(draw(2))[0], torch.eye(2).double())
    # no other client: z = w
    assert torch.equal(full(draw(1))[0], torch.eye(1).double())
    same, _ = full(draw(1).repeat(4, 1))
    assert torch.equal(same, torch.eye(4).double())


def test_others_are_the_last_uploads_and_absent_clients_use_their_stored_model(
    cohort,
):
    method = DiversiFed(name="diversifed", alpha=0.5, tau=0.8)
    models = draw(5).float()
    server = {
        "models": torch.zeros(5, 12),
        "uploaded": torch.zeros(5, dtype=torch.bool),
    }
    assert method.send(server, cohort([[1]] * 5)) == {}
    method.aggregate(
        server, cohort([[1]] * 3, ids=[0, 2, 4]), {"model": models[[0, 2, 4]]}
    )
    method.aggregate(
        server, cohort([[1]] * 3, ids=[1, 2, 3]), {"model": models[[1, 2, 3]]}
    )
    assert torch.equal(server["models"], models)
    anchors = method.send(server, cohort([[1]] * 2, ids=[0, 2]))["anchor"]
    for anchor, client, others in zip(
        anchors, (0, 2), ([1, 2, 3], [1, 3]), strict=True
    ):
        own = models[client].double().requires_grad_()
        loss = diversity(own, models[others].double(), 0.8)
        (slope,) = torch.autograd.grad(loss, own)
        expected = (own - 0.5 * slope).detach().float()
        torch.testing.assert_close(anchor, expected, rtol=1e-5, atol=1e-6)
