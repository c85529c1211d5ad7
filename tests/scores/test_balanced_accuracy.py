"""The mean recall of classes."""

import pytest
from counted import block_of, check, draw, number
from sklearn import metrics


def test_a_class_without_test_samples_does_not_count():
    check("balanced_accuracy", (2 / 3 + 1 / 2 + 1 / 1) / 3)


def test_it_is_scikit_learns():
    labels, predicted = draw(0)
    block = block_of((labels.tolist(), predicted.tolist()), classes=5)
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        expected = metrics.balanced_accuracy_score(labels, predicted)
    assert number("balanced_accuracy", block) == pytest.approx([expected])
