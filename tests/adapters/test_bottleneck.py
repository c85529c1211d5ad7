"""Bottlenecks."""

import torch
from torch import nn

from hpcfl.adapters import kinds
from hpcfl.experiment.sections import Adapter


def test_a_bottleneck_by_hand():
    """y = x + (0, 1) = (2, -1); W_down y = (4, -3), which ReLU maps to (4, 0), and W_up
    to (4, 8): (6, 7).
    """
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    kinds.adapt(module, Adapter(kind="bottleneck", targets=["0"], width=2))
    layer = module[0]
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
        layer.bias.copy_(torch.tensor([0.0, 1.0]))
        layer.W_down.copy_(torch.tensor([[1.0, -2.0], [-1.0, 1.0]]))
        layer.W_up.copy_(torch.tensor([[1.0, 0.0], [2.0, 5.0]]))
    assert layer(torch.tensor([[2.0, -2.0]])).tolist() == [[6.0, 7.0]]
