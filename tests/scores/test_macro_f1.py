"""The mean F1 of classes."""

import numpy as np
import pytest
from counted import block_of, check, draw, number
from sklearn import metrics


def test_f1_is_twice_the_correct_over_predicted_and_tested():
    check("macro_f1", (4 / 5 + 2 / 4 + 2 / 2) / 3)


def test_a_class_that_is_never_predicted_has_an_f1_of_zero():
    """F1 of class 0 is 4 / (3 + 2)."""
    block = block_of(([0, 0, 1], [0, 0, 0]))
    assert number("macro_f1", block) == pytest.approx([(4 / 5 + 0) / 2])


def test_it_is_scikit_learns_over_the_classes_that_are_there():
    """Its default takes class 4 into the mean too, with 0."""
    labels, predicted = draw(0)
    block = block_of((labels.tolist(), predicted.tolist()), classes=5)
    there = np.unique(labels)
    of_there = metrics.f1_score(labels, predicted, average="macro", labels=there)
    of_all = metrics.f1_score(labels, predicted, average="macro")
    assert number("macro_f1", block) == pytest.approx([of_there])
    assert of_there == pytest.approx(5 / 4 * of_all)
