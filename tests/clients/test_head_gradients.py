"""Gradients of the head by class, against autograd."""

import pytest
import torch
from torch.nn import functional

from hpcfl.clients.head_gradients import compute_from_means, compute_outer_products
from hpcfl.models.mlp import MLP
from hpcfl.rows.layout import lay_out_parameters

CLASSES = 3


@pytest.mark.parametrize("label", range(CLASSES))
def test_the_gradient_of_a_class_is_that_of_its_samples(label):
    torch.manual_seed(0)
    module, x = MLP((5,), CLASSES, hidden=(4,)), torch.randn(6, 5)
    mean = compute_outer_products(module, x, None).mean(dim=0)
    of_classes = mean.expand(1, CLASSES, -1)
    found = compute_from_means(of_classes, lay_out_parameters(module))[0, label]
    loss = functional.cross_entropy(module(x), torch.full((6,), label))
    expected = torch.autograd.grad(loss, list(module.head.parameters()))
    flat = torch.cat([part.flatten() for part in expected])
    torch.testing.assert_close(found, flat)
