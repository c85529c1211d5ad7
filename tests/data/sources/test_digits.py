"""The digits of scikit-learn, which need no files."""

import numpy as np
import torch

from hpcfl.data import datasets
from hpcfl.experiment import config


def test_digits_are_those_that_scikit_learn_gives(monkeypatch):
    from sklearn.datasets import load_digits  # takes long to import

    monkeypatch.delenv("HPCFL_DATA", raising=False)
    digits, given = datasets.load(config.Data()), load_digits()
    assert np.array_equal(digits.x.squeeze(1).numpy(), given.images)
    assert np.array_equal(digits.y.numpy(), given.target)
    values = digits.normalise(digits.x)
    assert digits.official_test == 0 and values.dtype == torch.float32
    assert values.min() == -1 and values.max() == 1
