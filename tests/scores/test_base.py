"""Means of the clients' numbers over a round: protocols.md E2."""

import math

import numpy as np
import pytest
import torch
from counted import LABELS, PREDICTED, block_of

from hpcfl.experiment import measures
from hpcfl.scores.base import summarise
from hpcfl.scores.built_in import Accuracy, Loss, MacroF1

NAN = math.nan


def test_the_summary_of_accuracies_over_clients_by_hand():
    correct, total = (
        np.array([9.0, 1.0, NAN, 0.0, 0.0]),
        np.array([10.0, 2.0, NAN, 0.0, 5.0]),
    )
    found = Accuracy().summary("accuracy", {"correct": correct, "total": total})
    assert found == pytest.approx(
        {
            "weighted": 10 / 17,
            "mean": 1.4 / 3,
            "std": math.sqrt((0.9**2 + 0.5**2) / 3 - (1.4 / 3) ** 2),
            "worst_tenth": 0.0,
        }
    )
    many = Accuracy().summary(
        "accuracy", {"correct": np.arange(20.0), "total": np.full(20, 20.0)}
    )
    assert many["worst_tenth"] == pytest.approx((0 + 0.05) / 2)  # two of twenty
    nobody = Accuracy().summary(
        "accuracy", {"correct": np.array([NAN]), "total": np.array([NAN])}
    )
    assert list(nobody) == ["weighted", "mean", "std", "worst_tenth"]
    assert all(map(math.isnan, nobody.values()))


def test_the_mean_loss_of_clients_and_those_that_lose_most():
    """Sums 2, 9 and 1 of 2, 3 and 1 samples: means 1, 3, 1; the worst is the largest."""
    found = Loss().summary(
        "loss",
        {
            "loss": np.array([2.0, 9.0, 1.0, 0.0]),
            "total": np.array([2.0, 3.0, 1.0, 0.0]),
        },
    )
    assert found == pytest.approx(
        {
            "loss": 5 / 3,
            "loss_std": math.sqrt(8) / 3,
            "loss_worst_tenth": 3.0,
        }
    )


def test_a_scores_name_is_in_its_numbers():
    found = MacroF1().summary("own:F1", {"own:F1": np.array([0.5, NAN, 1.0])})
    assert found == {
        "own:F1": 0.75,
        "own:F1_std": 0.25,
        "own:F1_worst_tenth": 0.5,
    }


def test_mean_and_std_ignore_clients_without_a_number():
    numbers = np.array([1.0, NAN, 3.0])
    assert (summarise("mean", numbers), summarise("std", numbers)) == (2.0, 1.0)
    assert math.isnan(summarise("mean", np.array([NAN])))


def test_sums_of_blocks_add_up():
    whole = block_of((LABELS, PREDICTED))
    first = block_of((LABELS[:2], PREDICTED[:2]))
    rest = block_of((LABELS[2:], PREDICTED[2:]))
    for score in measures.list_built_in().values():
        added = score.sums(first) + score.sums(rest)
        assert torch.allclose(score.sums(whole), added)
