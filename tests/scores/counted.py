"""Blocks of predictions with results counted by hand."""

import math

import pytest
import torch

from hpcfl.experiment import measures
from hpcfl.scores.base import Block

CLASSES = 4
# By class: correct 2 1 1 0, tested 3 2 1 0, predicted 2 2 1 1.
LABELS, PREDICTED = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 3, 2]


def block_of(*clients, classes=CLASSES, outputs=None, spare=0):
    """Return a block of clients with (labels, predictions) of the same length;
    ``spare`` padding samples must not count. Logits are 1 for the prediction, else 0.
    """
    labels, predicted = torch.tensor(clients).transpose(0, 1)
    labels, predicted = (
        torch.nn.functional.pad(part, (0, spare)) for part in (labels, predicted)
    )
    logits = torch.nn.functional.one_hot(predicted, outputs or classes).float()
    counted = torch.arange(labels.shape[1]) < labels.shape[1] - spare
    return Block(logits, labels, counted.expand(len(clients), -1), classes)


def block_of_one(logits, labels):
    """Return the block of a client with these logits [b, classes]."""
    mask = torch.ones(1, len(labels), dtype=torch.bool)
    return Block(logits[None], torch.as_tensor(labels)[None], mask, logits.shape[1])


def number(name, block):
    score = measures.list_built_in()[name]
    trained = torch.ones(len(block.labels), block.classes).double()
    return score.number(score.sums(block).double(), trained).tolist()


def check(name, expected, where_all_is_right=1):
    """Check a score on the six predictions and on correct ones, with padding samples,
    and without samples.
    """
    for spare in (0, 3):
        block = block_of((LABELS, PREDICTED), (PREDICTED, PREDICTED), spare=spare)
        assert number(name, block) == pytest.approx([expected, where_all_is_right])
    block.mask = torch.zeros_like(block.mask)
    empty = Block(block.logits, block.labels, block.mask, CLASSES)
    assert math.isnan(number(name, empty)[0])
