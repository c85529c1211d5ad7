"""Every built-in score on predictions that can be counted on one's fingers, and against
scikit-learn.
"""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics

from hpcfl.experiment import measures
from hpcfl.scores.base import Block
from hpcfl.scores.loss import Loss

CLASSES = 4


def block_of(*clients, classes=CLASSES, outputs=None, spare=0):
    """A block of clients given as (labels, predictions) of the same length; ``spare``
    samples more that must not count.
    """
    labels, predicted = torch.tensor(clients).transpose(0, 1)
    labels, predicted = (
        torch.nn.functional.pad(part, (0, spare)) for part in (labels, predicted)
    )
    logits = torch.nn.functional.one_hot(predicted, outputs or classes).float()
    mask = (torch.arange(labels.shape[1]) < labels.shape[1] - spare).expand(
        len(clients), -1
    )
    return Block(logits, labels, mask, classes)


def number(name, block, trained=None):
    score = measures.built_in()[name]
    trained = (
        torch.ones(len(block.labels), block.classes).double()
        if trained is None
        else trained
    )
    return score.number(score.sums(block).double(), trained).tolist()


# Labels 0 0 0 1 1 2, predicted 0 0 1 1 3 2. By class: correct 2 1 1 0, tested 3 2 1 0,
# predicted 2 2 1 1.
LABELS, PREDICTED = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 3, 2]
BY_HAND = {
    "accuracy": 4 / 6,
    "balanced_accuracy": (2 / 3 + 1 / 2 + 1 / 1) / 3,  # class 3 has no test sample
    "macro_f1": (4 / 5 + 2 / 4 + 2 / 2) / 3,  # 2·correct / (predicted + tested)
    # logits 1 for the prediction, else 0
    "loss": (4 * (math.log(math.e + 3) - 1) + 2 * math.log(math.e + 3)) / 6,
    "top5": 1,  # of four classes
    # every largest probability is e/(e + 3) = 0.475, all in one bin
    "ece": 4 / 6 - math.e / (math.e + 3),
    # of the 6 right classes 4 are large, of the 18 wrong ones 2: of the 108 pairs 4·16
    # are in order, 4·2 + 2·16 are equal
    "auc": (64 + 40 / 2) / 108,
}
WHERE_ALL_IS_RIGHT = {
    "loss": math.log(math.e + 3) - 1,
    "ece": 1 - math.e / (math.e + 3),
}


def test_every_score_of_single_samples_has_a_value_by_hand():
    """The personalised ones weigh by what a client trained on; theirs are in
    test_personalised.py.
    """
    assert sorted(BY_HAND) == sorted(set(measures.built_in()) - {"pm_v", "pm_l"})


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("spare", [0, 3])
def test_a_score_by_hand(name, spare):
    block = block_of((LABELS, PREDICTED), (PREDICTED, PREDICTED), spare=spare)
    first, second = number(name, block)
    assert first == pytest.approx(BY_HAND[name])
    assert second == pytest.approx(WHERE_ALL_IS_RIGHT.get(name, 1))


def test_five_classes_of_seven_are_enough():
    """Logits 6 … 0 of classes 0 … 6: classes 0 to 4 are among the first five."""
    labels = torch.arange(7)[None]
    logits = torch.arange(6, -1, -1.0).expand(1, 7, 7)
    block = Block(logits, labels, torch.ones(1, 7, dtype=torch.bool), 7)
    assert number("top5", block) == pytest.approx([5 / 7])


def test_the_area_is_that_of_scikit_learn_but_for_its_steps():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (1, 200), generator=generator)
    logits = torch.randn(1, 200, 3, generator=generator, dtype=torch.float64)
    logits += torch.nn.functional.one_hot(labels, 3)
    block = Block(logits, labels, torch.ones(1, 200, dtype=torch.bool), 3)
    expected = metrics.roc_auc_score(
        np.eye(3)[labels[0]], logits.softmax(dim=2)[0], average="micro"
    )
    assert number("auc", block) == pytest.approx([expected], abs=1e-4)


def test_calibration_is_by_bins():
    """Two classes, confidences 0.55 and 0.65 in two bins: right once of one, and once
    of two: |1 − 0.55| and |1 − 1.3|, over three samples.
    """
    odds = [math.log(0.55 / 0.45), math.log(0.65 / 0.35), math.log(0.65 / 0.35)]
    logits = torch.tensor([[[odd, 0.0] for odd in odds]], dtype=torch.float64)
    block = Block(
        logits, torch.tensor([[0, 0, 1]]), torch.ones(1, 3, dtype=torch.bool), 2
    )
    assert number("ece", block) == pytest.approx([(0.45 + 0.3) / 3])


def test_a_class_that_is_never_predicted_has_an_f1_of_zero():
    """Labels 0 0 1, predicted 0 0 0: F1 of class 0 is 4 / (3 + 2), of class 1 it is 0."""
    assert number("macro_f1", block_of(([0, 0, 1], [0, 0, 0]))) == pytest.approx(
        [(4 / 5 + 0) / 2]
    )


def test_a_client_without_test_samples_has_no_number():
    empty = block_of(([0], [0]), spare=0)
    empty.mask = torch.zeros(1, 1, dtype=torch.bool)
    for name in BY_HAND:
        assert math.isnan(number(name, empty)[0])


def test_outputs_that_are_no_class_are_wrong_and_belong_to_none():
    block = block_of(([0, 1], [0, 5]), outputs=6)
    assert number("accuracy", block) == [0.5]
    assert number("macro_f1", block) == [0.5] and block.predicted_by_class.tolist() == [
        [1, 0, 0, 0]
    ]


@pytest.mark.parametrize("seed", range(5))
def test_against_scikit_learn(seed):
    random = np.random.default_rng(seed)
    y, predicted = random.integers(0, 5, (2, 40))
    y[y == 4] = 0  # class 4 is predicted but never there
    block = block_of((y.tolist(), predicted.tolist()), classes=5)
    there = np.unique(y)
    assert number("accuracy", block)[0] == pytest.approx(
        metrics.accuracy_score(y, predicted)
    )
    assert number("macro_f1", block)[0] == pytest.approx(
        metrics.f1_score(y, predicted, average="macro", labels=there)
    )
    # Its default takes class 4 into the mean too, with 0.
    assert number("macro_f1", block)[0] == pytest.approx(
        5 / 4 * metrics.f1_score(y, predicted, average="macro")
    )
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        assert number("balanced_accuracy", block)[0] == pytest.approx(
            metrics.balanced_accuracy_score(y, predicted)
        )
    logits = torch.from_numpy(random.standard_normal((1, 40, 5)))
    losses = Block(
        logits, torch.from_numpy(y)[None], torch.ones(1, 40, dtype=torch.bool), 5
    )
    total, samples = Loss().sums(losses)[0].tolist()
    expected = metrics.log_loss(y, logits[0].softmax(dim=1), labels=range(5))
    assert total / samples == pytest.approx(expected)


def test_sums_of_blocks_add_up():
    whole = block_of((LABELS, PREDICTED))
    halves = (
        block_of((LABELS[:2], PREDICTED[:2])),
        block_of((LABELS[2:], PREDICTED[2:])),
    )
    for score in measures.built_in().values():
        assert torch.allclose(
            score.sums(whole), sum(score.sums(half) for half in halves)
        )
