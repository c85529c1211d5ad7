"""The expected calibration error."""

import math

import pytest
import torch
from counted import block_of_one, check, number


def test_confidences_in_one_bin():
    """Every largest probability is e/(e + 3) = 0.475."""
    confidence = math.e / (math.e + 3)
    check("ece", 4 / 6 - confidence, where_all_is_right=1 - confidence)


def test_calibration_is_by_bins():
    """Two classes, confidences 0.55 and 0.65 in two bins: right once of one, and once
    of two: |1 − 0.55| and |1 − 1.3|, over three samples.
    """
    odds = [math.log(0.55 / 0.45), math.log(0.65 / 0.35), math.log(0.65 / 0.35)]
    logits = torch.tensor([[odd, 0.0] for odd in odds], dtype=torch.float64)
    block = block_of_one(logits, [0, 0, 1])
    assert number("ece", block) == pytest.approx([(0.45 + 0.3) / 3])
