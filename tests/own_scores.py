"""A user's scores, named in configurations as 'own_scores:…': a correct one, and
mistakes.
"""

import torch

from hpcfl.scores.base import Ratio, Score
from hpcfl.scores.built_in import MacroF1


class Surprise(Score):
    """Mean surprise of a client's model at its test samples' classes, in bits."""

    unit = "bits"
    better = "down"

    def sums(self, block):
        right = block.logits.log_softmax(dim=2).gather(2, block.labels[..., None])[
            ..., 0
        ]
        surprise = torch.where(block.mask, -right.double() / torch.tensor(2.0).log(), 0)
        return torch.stack([surprise.sum(dim=1), block.samples], dim=1)

    def number(self, sums, trained):
        return sums[:, 0] / sums[:, 1]


class F1(MacroF1):
    """The built-in score under another name."""


class Better(MacroF1):
    better = "higher"


class Nothing:
    """A class that is no score."""


class Unfinished(Score):
    def sums(self, block):
        return block.right_by_class


class WithArguments(MacroF1):
    def __init__(self, beta):
        self.beta = beta


class FewNumbers(Surprise):
    """A score with one number for more than three clients together."""

    def number(self, sums, trained):
        numbers = super().number(sums, trained)
        return numbers if len(numbers) <= 3 else numbers[:1]


class FewSums(Surprise):
    """A score with one row for more than three clients together."""

    def sums(self, block):
        sums = super().sums(block)
        return sums if len(sums) <= 3 else sums[:1]


class Typo(MacroF1):
    def sums(self, block):
        return block.right_by_clas


class Mean(Surprise):
    def sums(self, block):
        return block.right.double().mean(dim=1, keepdim=True)


class Unmasked(Surprise):
    def sums(self, block):
        return (block.predicted == block.labels).double().sum(dim=1, keepdim=True)


class Together(MacroF1):
    def sums(self, block):
        return super().sums(block).sum(dim=0).expand(len(block.labels), -1)


class OneForAll(MacroF1):
    def sums(self, block):
        return super().sums(block).sum(dim=0)


class WrongNumber(MacroF1):
    def number(self, sums, trained):
        return super().number(sums, trained).mean()


class Ranked(Surprise):
    def number(self, sums, trained):
        return super().number(sums, trained).argsort()


class Median(MacroF1):
    summaries = ("median",)

    def summary(self, name, numbers):
        return {name: numbers[name].medain()}


class Unsummed(MacroF1):
    summaries = ("mean", "median")


class Doubled(MacroF1):
    def recorded_as(self, name, kind):
        return {"mean": "pre", "std": "std", "worst_tenth": "worst"}[kind]


class Mistakes(Ratio):
    """A score that records the number of all samples under the name of accuracy's
    correct predictions.
    """

    part = "correct"

    def sums(self, block):
        return torch.stack([block.samples, block.samples], dim=1)


class TwiceAsMany(Ratio):
    """A score that divides by another number than accuracy, under the same name."""

    part = "right"

    def sums(self, block):
        return torch.stack([block.right.double().sum(dim=1), 2 * block.samples], dim=1)


class Folded(MacroF1):
    def numbers(self, name, sums, trained):
        return {"folded/right": self.number(sums, trained)}


class Halved(MacroF1):
    def summary(self, name, numbers):
        return {"": 0.5}

    def recorded_as(self, name, kind):
        return ""


class Overwriting(MacroF1):
    def sums(self, block):
        block.logits[~block.mask] = 0
        return super().sums(block)


class Adding(MacroF1):
    def number(self, sums, trained):
        return sums.add_(1)[:, 0]


class Undefined(MacroF1):
    def sums(self, block):
        return super().sums(block) * torch.nan


class Unset(MacroF1):
    def number(self, sums, trained):
        torch.set_default_dtype(torch.float64)
        return super().number(sums, trained)
