"""Every built-in score on predictions counted by hand."""

import math

import numpy as np
import pytest
import torch
from counted import block_of, block_of_one, check, number


def test_four_of_six_are_right():
    check("accuracy", 4 / 6)


def test_outputs_that_are_no_class_are_wrong_and_belong_to_none():
    block = block_of(([0, 1], [0, 5]), outputs=6)
    assert number("accuracy", block) == number("macro_f1", block) == [0.5]
    assert block.predicted_by_class.tolist() == [[1, 0, 0, 0]]


def test_a_class_without_test_samples_does_not_count():
    check("balanced_accuracy", (2 / 3 + 1 / 2 + 1 / 1) / 3)


def test_f1_is_twice_the_correct_over_predicted_and_tested():
    check("macro_f1", (4 / 5 + 2 / 4 + 2 / 2) / 3)


def test_a_class_that_is_never_predicted_has_an_f1_of_zero():
    """F1 of class 0 is 4 / (3 + 2)."""
    block = block_of(([0, 0, 1], [0, 0, 0]))
    assert number("macro_f1", block) == pytest.approx([(4 / 5 + 0) / 2])


def test_all_of_four_classes_are_among_five():
    check("top5", 1)


def test_five_classes_of_seven_are_enough():
    """Logits 6 … 0 of classes 0 … 6: classes 0 to 4 are among the first five."""
    logits = torch.arange(6, -1, -1.0).expand(7, 7)
    block = block_of_one(logits, torch.arange(7))
    assert number("top5", block) == pytest.approx([5 / 7])


def test_cross_entropies_of_four_right_and_two_wrong():
    whole = math.log(math.e + 3)  # with logits 1 for the prediction, else 0
    check("loss", (4 * (whole - 1) + 2 * whole) / 6, where_all_is_right=whole - 1)


def test_confidences_in_one_bin():
    """Every largest probability is e/(e + 3) = 0.475."""
    confidence = math.e / (math.e + 3)
    check("ece", 4 / 6 - confidence, where_all_is_right=1 - confidence)


def test_calibration_is_by_bins():
    """Two classes, confidences 0.55 and 0.65 in two bins: one correct of one, and one
    of two: |1 − 0.55| and |1 − 1.3|, over three samples.
    """
    odds = [math.log(0.55 / 0.45), math.log(0.65 / 0.35), math.log(0.65 / 0.35)]
    logits = torch.tensor([[odd, 0.0] for odd in odds], dtype=torch.float64)
    block = block_of_one(logits, [0, 0, 1])
    assert number("ece", block) == pytest.approx([(0.45 + 0.3) / 3])


def test_pairs_in_order_and_equal_pairs():
    """4 of the 6 logits of correct classes are large, and 2 of the 18 others: of the
    108 pairs 4·16 are in order, 4·2 + 2·16 are equal.
    """
    check("auc", (64 + 40 / 2) / 108)


def test_the_area_is_scikit_learns_but_for_its_steps():
    from sklearn import metrics

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (200,), generator=generator)
    logits = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    logits += torch.nn.functional.one_hot(labels, 3)
    expected = metrics.roc_auc_score(
        np.eye(3)[labels], logits.softmax(dim=1), average="micro"
    )
    found = number("auc", block_of_one(logits, labels))
    assert found == pytest.approx([expected], abs=1e-4)
