"""The signs of a row."""

import torch

from hpcfl.updates.transforms.sign import Sign


def test_signs_are_scaled_by_the_mean_absolute_value():
    updates = torch.tensor([[3.0, -4, 0, 0]])
    assert Sign(kind="sign").compress(updates, None).tolist() == [
        [1.75, -1.75, 1.75, 1.75]
    ]
