"""Accuracies of a round from the clients' own numbers (protocols.md E2)."""

import math

import numpy as np
from numpy.typing import NDArray


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
