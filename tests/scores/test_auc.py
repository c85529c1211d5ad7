"""The area under the ROC curve."""

import numpy as np
import pytest
import torch
from counted import block_of_one, check, number
from sklearn import metrics


def test_pairs_in_order_and_equal_pairs():
    """Of the 6 right classes 4 are large, of the 18 wrong ones 2: of the 108 pairs 4·16
    are in order, 4·2 + 2·16 are equal.
    """
    check("auc", (64 + 40 / 2) / 108)


def test_it_is_scikit_learns_but_for_its_steps():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (200,), generator=generator)
    logits = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    logits += torch.nn.functional.one_hot(labels, 3)
    expected = metrics.roc_auc_score(
        np.eye(3)[labels], logits.softmax(dim=1), average="micro"
    )
    found = number("auc", block_of_one(logits, labels))
    assert found == pytest.approx([expected], abs=1e-4)
