"""The share of samples whose class is among the five most likely."""

import pytest
import torch
from counted import block_of_one, check, number


def test_all_of_four_classes_are_among_five():
    check("top5", 1)


def test_five_classes_of_seven_are_enough():
    """Logits 6 … 0 of classes 0 … 6: classes 0 to 4 are among the first five."""
    logits = torch.arange(6, -1, -1.0).expand(7, 7)
    block = block_of_one(logits, torch.arange(7))
    assert number("top5", block) == pytest.approx([5 / 7])
