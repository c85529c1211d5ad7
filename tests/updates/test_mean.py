"""Weighted mean as a rule."""

import torch

from hpcfl.updates.rules.mean import Mean


def test_the_mean_weights_clients():
    updates = torch.tensor([[0.0, 1], [4, 1]])
    mean = Mean().combine(updates, torch.tensor([3.0, 1]).double(), None)
    assert mean.tolist() == [1, 1]
