"""Output layers that replace a model's output layer."""

import pytest
import torch
from refusals import expect_refusal
from torch import nn

from hpcfl import models
from hpcfl.experiment import config
from hpcfl.models.heads import CosineHead, make_simplex, spread


def test_any_model_can_have_a_cosine_head():
    keys = config.Model(name="lenet", head="cosine", head_scale=20.0)
    model = models.build(keys, (3, 32, 32), 10)
    assert (
        sum(p.numel() for p in model.parameters()) == 62_006 - 10 + 1
    )  # no bias, but a scale
    x = torch.randn(5, 3, 32, 32)
    cosines = nn.functional.cosine_similarity(
        model.features(x)[:, None], model.head.weight[None], dim=2
    )
    torch.testing.assert_close(model(x), 20 * cosines)
    model.head.weight.data *= 3
    torch.testing.assert_close(model(x), 20 * cosines)


def test_a_cosine_head_needs_a_head_to_replace():
    words = r"model\.head = 'cosine' .*nn\.Linear 'head'"
    with expect_refusal(words):
        models.build(
            config.Model(name="test_models_heads:headless", head="cosine"), (3,), 2
        )


def headless(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], classes))


def test_rows_of_a_cosine_head_are_far_apart():
    torch.manual_seed(0)
    rows = CosineHead(8, 5, 1.0).weight
    torch.testing.assert_close(rows @ rows.T, torch.eye(5))
    half, height = 0.5, 3**0.5 / 2  # in the plane row k is at 60k degrees
    torch.testing.assert_close(
        spread(6, 2),
        torch.tensor(
            [
                [1, 0],
                [half, height],
                [-half, height],
                [-1, 0],
                [-half, -height],
                [half, -height],
            ]
        ),
    )
    farthest = spread(10, 9)  # one more than can be orthogonal: all cosines are −1/9
    torch.testing.assert_close(
        farthest @ farthest.T, torch.eye(10) * 10 / 9 - 1 / 9, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(("classes", "width"), [(3, 2), (10, 192), (10, 9)])
def test_simplex_rows_solve_fednhs_first_equation(classes, width):
    """Squared distances are 2K/(K − 1)."""
    rows = make_simplex(classes, width)
    assert rows.shape == (classes, width)
    squares = torch.cdist(rows, rows).square()
    apart = squares[~torch.eye(classes, dtype=torch.bool)]
    expected = torch.full_like(apart, 2 * classes / (classes - 1))
    torch.testing.assert_close(apart, expected)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(classes))
