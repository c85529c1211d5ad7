"""FedUV: methods-1.md §14. V measures how far standard deviations of predictions are
below 1/√K, U the closeness of features.
"""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from hpcfl.clients.losses import Batch, Lane
from hpcfl.methods.feduv import (
    FedUV,
    compute_closeness,
    compute_median_above_zero,
    compute_variance_gap,
)
from hpcfl.models.mlp import MLP


def draw(*shape):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


def test_variance_by_hand():
    # Two samples, two classes: a column (0.9, 0.5) has the unbiased standard deviation
    # 0.4/√2; 1/√2 − 0.4/√2 = 0.6/√2.
    assert float(
        compute_variance_gap(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).double())
    ) == pytest.approx(0.6 / math.sqrt(2))


def test_uniformity_by_hand():
    # Points 0, 1, 3 on a line: squared distances 1, 9, 4, their median 4: (e^−¼ +
    # e^−9/4 + e^−1)/3.
    expected = (math.exp(-0.25) + math.exp(-2.25) + math.exp(-1)) / 3
    assert float(
        compute_closeness(torch.tensor([[0.0], [1.0], [3.0]]).double(), detach=False)
    ) == pytest.approx(expected)


@pytest.mark.parametrize(
    "values", [[3.0], [1, 2, 3], [4, 3, 2, 1], [0, 5, 0, 1, 7, 0], [0, 2, 2, 9]]
)
def test_median_leaves_zeros_out(values):
    values = torch.tensor(values).double()
    assert compute_median_above_zero(values) == values[values > 0].median()


def test_coinciding_features_are_close_without_a_gradient():
    features = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    near = compute_closeness(features, detach=False)
    near.backward()
    assert near == 1 and torch.equal(features.grad, torch.zeros(4, 3).double())


def test_the_median_takes_part_in_the_gradient_unless_detached():
    features = draw(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: compute_closeness(x, detach=False), features
    )
    part, whole = (
        torch.autograd.grad(compute_closeness(features, detach), features)[0]
        for detach in (True, False)
    )
    assert not torch.allclose(part, whole)


def test_loss_is_the_sum_of_its_parts():
    model = MLP((5,), 4, hidden=(6,)).double()
    x, y = draw(8, 5), torch.arange(8) % 4
    features = model.features(x)
    parts = cross_entropy(model(x), y) + 2 * compute_variance_gap(model(x).softmax(1))
    for sphere in (False, True):
        method = FedUV(name="feduv", lam=2.0, mu=3.0, normalise=sphere)
        seen = normalize(features, dim=1) if sphere else features
        torch.testing.assert_close(
            method.loss(model, Batch(x, y), Lane()),
            parts + 3 * compute_closeness(seen, False),
        )


def test_a_batch_of_one_has_no_regularisers():
    model = MLP((5,), 4, hidden=(6,))
    batch = Batch(draw(1, 5).float(), torch.tensor([2]))
    assert FedUV(name="feduv").loss(model, batch, Lane()) == cross_entropy(
        model(batch.x), batch.y
    )
