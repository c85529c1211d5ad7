"""FedLC: methods-3.md §13."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hpcfl.clients.losses import Batch
from hpcfl.methods.fedlc import FedLC

METHOD = FedLC(name="fedlc")


def test_two_classes_by_hand(make_fleet):
    """n = (16, 1), so the margins are 16^(−1/4) = ½ and 1. For zero logits the loss is
    log(e^(−½) + e^(−1)) + ½ = 0.4741 for class 0 and larger by ½ for class 1. An absent
    class has e^(−100).
    """
    fleet = make_fleet([[16, 1, 0, 0]])
    (margin,) = METHOD.loss_variables(fleet, {})["margin"]
    torch.testing.assert_close(margin, torch.tensor([0.5, 1.0, 100.0, 100.0]))
    lane = SimpleNamespace(margin=margin)
    for label, expected in ((0, 0.4741), (1, 0.9741)):
        batch = Batch(torch.zeros(1, 4), torch.tensor([label]))
        found = METHOD.loss(nn.Identity(), batch, lane).item()
        assert found == pytest.approx(expected, abs=5e-5)


def test_absent_classes_leave_their_row_alone(make_fleet):
    fleet = make_fleet([[5, 4, 3, 0]])
    (margin,) = METHOD.loss_variables(fleet, {})["margin"]
    logits = torch.randn(12, 4, dtype=torch.float64, requires_grad=True)
    batch = Batch(logits, torch.arange(12) % 3)
    METHOD.loss(nn.Identity(), batch, SimpleNamespace(margin=margin)).backward()
    assert logits.grad[:, 3].abs().max() < math.exp(-90)
    assert logits.grad[:, :3].abs().min() > 0


def test_models_are_scored_without_margins(federate):
    """The model sent before round 1 is FedAvg's, with FedAvg's scores."""
    found, plain = (federate(name, rounds=1).values for name in ("fedlc", "fedavg"))
    assert (found["clients/pre/loss"][0] == plain["clients/pre/loss"][0]).all()
    assert (found["clients/post/loss"][0] != plain["clients/post/loss"][0]).all()
