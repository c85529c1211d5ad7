"""Clipping of clients' updates, and the adaptive clip, as pure functions.

McMahan, Ramage, Talwar & Zhang, "Learning differentially private recurrent language
models", ICLR 2018. Andrew, Thakkar, McMahan & Ramaswamy, "Differentially private
learning with adaptive clipping", NeurIPS 2021.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hpcfl.experiment.sections import Privacy
from hpcfl.rows import mixing


def clip_updates(
    updates: Tensor, clip: float, layers: Sequence[slice]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the updates [n, P] with each layer clipped to clip/√L, the norms of the
    updates before clipping, float64 [n], and whether a layer was longer, bool [n].

    An update with NaN or Inf becomes zero. Products are rounded once. Norms and flags
    are on the CPU.

    Args:
        updates: The updates [n, P].
        clip: The maximal norm of a whole update.
        layers: The columns of each of L layers.
    """
    clipped = torch.empty_like(updates)
    squares = torch.zeros(len(updates)).double()
    is_clipped = torch.zeros(len(updates), dtype=torch.bool)
    bound = clip / math.sqrt(len(layers))
    for position, update in enumerate(updates):
        exact = update.double()
        if not exact.isfinite().all():
            exact = torch.zeros_like(exact)
        for columns in layers:
            part = exact[columns]
            row_of_squares = part.square()[None]
            square = mixing.sum_rows(row_of_squares).item()
            norm = math.sqrt(square)
            squares[position] += square
            clipped[position, columns] = part * (bound / max(bound, norm))
            is_clipped[position] |= norm > bound
    return clipped, squares.sqrt(), is_clipped


def move_clip(clip: float, share: float, privacy: Privacy) -> float:
    """Return the adaptive clip C·exp(−η(b̃ − γ)) of the next round.

    Args:
        clip: The clip C of this round.
        share: The noisy share b̃ of the round's clients with an update below the clip.
        privacy: The section, with the rate η and the quantile γ.
    """
    return clip * math.exp(-privacy.clip_rate * (share - privacy.clip_quantile))


def split_noise(sigma: float, count_noise: float) -> float:
    """Return the multiplier σ_Δ of the model's noise such that this noise and the noise
    on the number of clients below the clip together cost as much as σ.

    Args:
        sigma: The multiplier σ.
        count_noise: The standard deviation σ_b of the noise on the number.
    """
    if sigma == 0:
        return 0.0
    cost_of_both = sigma**-2
    cost_of_count = (2 * count_noise) ** -2
    multiplier: float = (cost_of_both - cost_of_count) ** -0.5
    return multiplier
