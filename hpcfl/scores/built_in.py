"""The built-in scores, by the names in ``families.toml``."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
import torch.nn.functional as functional
from torch import Tensor

from hpcfl.scores.base import KINDS, Block, Numbers, Ratio, Score, sum_in_bins

TOP = 5
CONFIDENCE_BINS = 15
LARGEST = 16  # upper limit of absolute log-odds
STEPS = 64  # number of steps per unit of log-odds
ODDS_BINS = 2 * LARGEST * STEPS


class Accuracy(Ratio):
    """Accuracy: the share of a client's test samples that are predicted correctly
    (protocols.md E2).

    The run records ``correct`` and ``total`` for each client. For the round it records
    ``COLUMN/weighted``, Σ correct / Σ total over clients. ``COLUMN/mean``,
    ``COLUMN/std`` and ``COLUMN/worst_tenth`` are recorded without the score's name.
    """

    part = "correct"
    summaries = ("weighted", *KINDS)

    def sums(self, block: Block) -> Tensor:
        return torch.stack([block.right.double().sum(dim=1), block.samples], dim=1)

    def summary(self, name: str, numbers: Mapping[str, Numbers]) -> dict[str, float]:
        correct, total = numbers["correct"], numbers["total"]
        scored = total > 0  # False for NaN
        weighted = (
            float(correct[scored].sum() / total[scored].sum())
            if scored.any()
            else float("nan")
        )
        return {"weighted": weighted, **super().summary(name, numbers)}

    def recorded_as(self, name: str, kind: str) -> str:
        return kind


class BalancedAccuracy(Score):
    """Balanced accuracy: the mean recall over the classes in a client's test samples.

    The score is ``1/|C| · Σ_{c ∈ C} correct_c / tested_c``, with C the classes with
    test samples. See Brodersen et al., "The balanced accuracy and its posterior
    distribution", ICPR 2010, here for any number of classes. It equals scikit-learn's
    ``balanced_accuracy_score``.
    """

    def sums(self, block: Block) -> Tensor:
        return torch.cat([block.right_by_class, block.tested_by_class], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        correct, tested = sums.chunk(2, dim=1)
        return (correct / tested).nanmean(dim=1)


class MacroF1(Score):
    """Macro F1: the mean F1 score over the classes in a client's test samples.

    The score is ``1/|C| · Σ_{c ∈ C} 2·correct_c / (predicted_c + tested_c)``, with C
    the classes with test samples. It is the mean of the classes' F1, not the F1 of mean
    precision and recall. Opitz & Burst, "Macro F1 and macro F1", arXiv 1911.03347,
    compare both. A class of C that is never predicted counts with 0.

    It equals scikit-learn's ``f1_score(average="macro")`` with ``labels`` set to C.
    Without ``labels``, scikit-learn's mean includes predicted classes without test
    samples as 0, so that these mistakes count twice.
    """

    def sums(self, block: Block) -> Tensor:
        return torch.cat(
            [block.right_by_class, block.predicted_by_class, block.tested_by_class],
            dim=1,
        )

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        correct, predicted, tested = sums.chunk(3, dim=1)
        f1 = 2 * correct / (predicted + tested)
        return torch.where(tested > 0, f1, torch.nan).nanmean(dim=1)


class Top5(Ratio):
    """Top-5 accuracy: the share of a client's test samples whose class has one of the
    five largest logits.

    A sample is correct if fewer than five classes have a larger logit than its class.
    With five classes or fewer the score is 1.
    """

    part = "correct_top5"

    def sums(self, block: Block) -> Tensor:
        own = block.logits.gather(2, block.labels[:, :, None])
        larger = (block.logits > own).sum(dim=2)
        right = (larger < TOP) & block.mask
        return torch.stack([right.double().sum(dim=1), block.samples], dim=1)


class Loss(Ratio):
    """Loss: the mean cross-entropy of a client's test samples, in nats.

    ``clients/COLUMN/loss`` is the sum over a client's samples and
    ``clients/COLUMN/total`` their number. ``COLUMN/loss`` is the mean of the clients'
    mean losses.
    """

    unit = "nats"
    better = "down"
    part = "loss"

    def sums(self, block: Block) -> Tensor:
        logits, labels = block.logits.flatten(0, 1), block.labels.flatten()
        losses = functional.cross_entropy(logits, labels, reduction="none")
        summed = (
            torch.where(block.mask, losses.view_as(block.mask), 0).double().sum(dim=1)
        )
        return torch.stack([summed, block.samples], dim=1)


class AttackSuccess(Score):
    """Attack success: the share of a client's test samples of other classes that are
    predicted as the target class of a backdoor after adding its patch.

    Bagdasaryan et al., "How to backdoor federated learning", AISTATS 2020. A run
    computes it if ``attack.kind`` is a backdoor.
    """

    better = "down"
    scored_on = "patched"

    def sums(self, block: Block) -> Tensor:
        return torch.stack([block.right.double().sum(dim=1), block.samples], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        return sums[:, 0] / sums[:, 1]


class CalibrationError(Score):
    """Expected calibration error: the mean difference between confidence and accuracy
    of a client's model.

    The score is ``Σ_b |right_b − confidence_b| / n`` over 15 bins of the largest
    softmax probability, ``((b−1)/15, b/15]``. The sums run over the n test samples in
    each bin (Guo et al., "On calibration of modern neural networks", ICML 2017, eq. 3).
    """

    better = "down"

    def sums(self, block: Block) -> Tensor:
        confidence = block.logits.double().softmax(dim=2).amax(dim=2)
        bins = (confidence * CONFIDENCE_BINS).ceil().long().clamp(
            1, CONFIDENCE_BINS
        ) - 1
        counted = block.mask.double()
        right = sum_in_bins(bins, block.right.double(), CONFIDENCE_BINS)
        confident = sum_in_bins(bins, confidence * counted, CONFIDENCE_BINS)
        samples = sum_in_bins(bins, counted, CONFIDENCE_BINS)
        return torch.cat([right, confident, samples], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        right, confidence, counted = sums.chunk(3, dim=1)
        return (right - confidence).abs().sum(dim=1) / counted.sum(dim=1)


class AreaUnderCurve(Score):
    """Area under the ROC curve of a client's model, one class against the rest,
    micro-averaged.

    A pair consists of the probability of a sample's true class and the probability of a
    wrong class for any sample, over all test samples of a client. The score is the
    share of pairs in which the former is larger; equal probabilities count half.

    Up to rounding it equals scikit-learn's ``roc_auc_score(average="micro")`` of
    one-hot labels, which PFLlib reports. Sums over samples cannot contain sorted
    probabilities. The log-odds are therefore counted in steps of 1/64 between −16 and
    16, and pairs in the same step count half.
    """

    def sums(self, block: Block) -> Tensor:
        """Return the numbers of probabilities of true and of wrong classes in each
        step, [L, 2 · steps].
        """
        log_p = block.logits.double().log_softmax(dim=2)
        log_p = log_p[:, :, : block.classes]
        log_odds = log_p - torch.log(-torch.expm1(log_p))
        steps = (log_odds + LARGEST) * STEPS
        steps = steps.nan_to_num(0).clamp(0, ODDS_BINS - 1)
        bins = steps.long().flatten(1)
        classes = torch.arange(block.classes, device=bins.device)
        own_class = block.labels[:, :, None] == classes
        counted = block.mask[:, :, None]
        of_right = own_class & counted
        of_wrong = ~own_class & counted
        right = sum_in_bins(bins, of_right.double().flatten(1), ODDS_BINS)
        wrong = sum_in_bins(bins, of_wrong.double().flatten(1), ODDS_BINS)
        return torch.cat([right, wrong], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        right, wrong = sums.chunk(2, dim=1)
        below = wrong.cumsum(dim=1) - wrong
        ordered = right * (below + wrong / 2)
        pairs = right.sum(dim=1) * wrong.sum(dim=1)
        return ordered.sum(dim=1) / pairs


class Personalised(Score):
    """Accuracy with class weights α of the client: Σ_c α_c · correct_c / Σ_c α_c ·
    tested_c.

    The score is NaN if all weights are zero. Dai et al., "Tackling data heterogeneity
    in federated learning with class prototypes", AAAI 2023.
    """

    shared_test = True

    @abstractmethod
    def weights(self, trained: Tensor) -> Tensor:
        """Return the weights α [n, classes] for the numbers of training samples
        ``trained`` [n, classes].
        """

    def sums(self, block: Block) -> Tensor:
        return torch.cat([block.right_by_class, block.tested_by_class], dim=1)

    def number(self, sums: Tensor, trained: Tensor) -> Tensor:
        correct, tested = sums.chunk(2, dim=1)
        alpha = self.weights(trained)
        return (alpha * correct).sum(dim=1) / (alpha * tested).sum(dim=1)


class PML(Personalised):
    """PM(L): accuracy on a shared test set, each class weighted by its share of the
    client's training samples.

    The score comes from FedNH; see protocols.md E2.
    """

    def weights(self, trained: Tensor) -> Tensor:
        return trained / trained.sum(dim=1, keepdim=True)


class PMV(Personalised):
    """PM(V): accuracy on a shared test set, restricted to the classes that the client
    trains on (FedNH; protocols.md E2).
    """

    def weights(self, trained: Tensor) -> Tensor:
        return (trained > 0).double()


plugins = {
    "accuracy": Accuracy,
    "attack_success": AttackSuccess,
    "auc": AreaUnderCurve,
    "balanced_accuracy": BalancedAccuracy,
    "ece": CalibrationError,
    "loss": Loss,
    "macro_f1": MacroF1,
    "pm_l": PML,
    "pm_v": PMV,
    "top5": Top5,
}
