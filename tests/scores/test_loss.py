"""The mean cross-entropy."""

import math

import numpy as np
import pytest
import torch
from counted import block_of_one, check, number
from sklearn import metrics


def test_cross_entropies_of_four_right_and_two_wrong():
    whole = math.log(math.e + 3)  # of logits 1 for the prediction, else 0
    check("loss", (4 * (whole - 1) + 2 * whole) / 6, where_all_is_right=whole - 1)


def test_it_is_scikit_learns():
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 40)
    logits = torch.from_numpy(random.standard_normal((40, 5)))
    expected = metrics.log_loss(labels, logits.softmax(dim=1), labels=range(5))
    assert number("loss", block_of_one(logits, labels)) == pytest.approx([expected])
