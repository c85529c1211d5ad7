"""What learning rates are multiplied by in a round."""

import math

from hpcfl.experiment.sections import Training

STEP = 0.1  # what a milestone leaves of a rate


def factor(training: Training, round: int, rounds: int) -> float:
    """``lr_decay^(round − 1)``, times the warm-up's and the schedule's part; ``round``
    counts from 1.

    The warm-up has round/warmup in its rounds, cosine (1 + cos(π(round − 1)/rounds))/2
    (Loshchilov & Hutter, ICLR 2017, without restarts), step a tenth for every milestone
    that lies behind.
    """
    scale = training.lr_decay ** (round - 1)
    if round < training.warmup:
        scale *= round / training.warmup
    if training.schedule == "cosine":
        scale *= (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
    if training.schedule == "step":
        scale *= STEP ** sum(milestone < round for milestone in training.milestones)
    return scale
