"""How many lanes fit a memory."""

import pytest
import torch

from hpcfl.experiment.config import Training
from hpcfl.fleet import scoring
from hpcfl.fleet.memory import lane_bytes, most_lanes
from hpcfl.models.mlp import MLP

PARAMETERS = 8 * 6 + 6 + 6 * 3 + 3


@pytest.mark.slow
@pytest.mark.parametrize(("training", "rows"),
                         [(Training(batch_size=500), 12), (Training(batch_size=500, momentum=0.9), 14),
                          (Training(batch_size=500, optimizer="adam"), 16)])
def test_a_lane_by_hand(training, rows):
    """The backward pass of 8-6-3 needs x [500, 8], relu(h) [500, 6], log-softmax [500, 3], the labels and
    their total weight."""
    model, x = MLP((8,), 3, hidden=(6,)), torch.zeros(1, 8)
    saved = 4 * 500 * (8 + 6 + 3) + 8 * 500 + 4
    assert lane_bytes(model, x, training) == rows * 4 * PARAMETERS + 2 * saved
    assert lane_bytes(model, x, training, private=7) == rows * 4 * PARAMETERS + 2 * saved + 3 * 7


def test_scoring_may_need_more_than_training():
    model, x = MLP((8,), 3, hidden=(6,)), torch.zeros(1, 8)
    kept = 4 * (8 + 6 + 3) + 8 + 4  # by the graphs of a step on one sample
    assert lane_bytes(model, x, Training(batch_size=1)) == (
        8 * 4 * PARAMETERS + kept + 2 * scoring.BLOCK * 4 * 8)


def test_lanes_fill_the_memory_and_one_always_trains():
    model, x, training = MLP((8,), 3, hidden=(6,)), torch.zeros(1, 8), Training(batch_size=500)
    one = lane_bytes(model, x, training)
    assert most_lanes(model, x, training, 10.5 * one / 0.7, 0) == 10
    assert most_lanes(model, x, training, 10.5 * one / 0.7, one) == 2
    assert most_lanes(model, x, training, 0.1 * one, 0) == 1
    assert model.training
