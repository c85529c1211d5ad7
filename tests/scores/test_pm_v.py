"""FedNH's accuracy on the classes that a client trains on."""

import pytest
import torch

from hpcfl.scores.pm_v import PMV


def test_e2_it_is_the_mean_recall_of_the_classes_held():
    """Of ten test samples of each class."""
    correct = torch.tensor([[8.0, 5.0, 0.0], [2.0, 2.0, 10.0]])
    sums = torch.cat([correct, torch.full((2, 3), 10.0)], dim=1).double()
    trained = torch.tensor([[30.0, 10.0, 0.0], [0.0, 0.0, 7.0]]).double()
    assert PMV().number(sums, trained).tolist() == pytest.approx([13 / 20, 1.0])
