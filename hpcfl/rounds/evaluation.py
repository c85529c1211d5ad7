"""Accuracies of a round from the clients' own numbers (protocols.md E2)."""

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def summary(correct: NDArray[np.float64], total: NDArray[np.float64]) -> dict[str, float]:
    """Over clients that were scored and hold test samples, [M] each, NaN for others:

    weighted: Σ correct / Σ samples; mean: the plain mean over clients; std: its population standard deviation;
    worst_tenth: the mean over the tenth of clients that fare worst (at least one).
    """
    scored = total > 0  # False for NaN
    if not scored.any():
        return dict.fromkeys(("weighted", "mean", "std", "worst_tenth"), math.nan)
    accuracy = correct[scored] / total[scored]
    worst = np.sort(accuracy)[:max(1, len(accuracy) // 10)]
    return {"weighted": float(correct[scored].sum() / total[scored].sum()), "mean": float(accuracy.mean()),
            "std": float(accuracy.std()), "worst_tenth": float(worst.mean())}


def personalised(by_class: Tensor, tested: Tensor, trained: Tensor) -> dict[str, NDArray[np.float64]]:
    """FedNH's accuracies of each client's model on a test set that all share, [n]: Σ_c α_c correct_c / Σ_c α_c tested_c.

    pm_v: α_c = 1 for the classes that the client trains on, else 0; pm_l: α_c its share of class c in training.
    by_class [n, classes] correct answers; tested [classes] and trained [n, classes] samples. NaN for a client without any.
    """
    weights = {"pm_v": (trained > 0).double(), "pm_l": trained / trained.sum(dim=1, keepdim=True)}
    return {name: ((alpha * by_class).sum(dim=1) / (alpha * tested).sum(dim=1)).numpy() for name, alpha in weights.items()}


def mean_and_std(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and population standard deviation over the clients that have a number; NaN without any."""
    known = values[~np.isnan(values)]
    return (float(known.mean()), float(known.std())) if len(known) else (math.nan, math.nan)
