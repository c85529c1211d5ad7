"""The digits of scikit-learn, which need no files."""

import numpy as np

from hpcfl.data import datasets
from hpcfl.experiment import config


def test_digits_are_those_that_scikit_learn_gives():
    from sklearn.datasets import load_digits  # takes long to import

    digits, given = datasets.load(config.Data()), load_digits()
    assert np.array_equal(digits.x.squeeze(1).numpy(), given.images)
    assert np.array_equal(digits.y.numpy(), given.target)
