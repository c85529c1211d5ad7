"""Attacks that change the attacker's update."""

import numpy as np
import pytest
import torch

from hpcfl.updates.attacks.own import Gaussian, Scale, SignFlip
from hpcfl.updates.base import Context


def make_context(ids, round=1):
    return Context(seed=1, round=round, ids=np.array(ids), clients=9)


def test_the_sign_is_flipped():
    forged = SignFlip(share=0.5, factor=2).forge(
        torch.tensor([[1.0, -3]]), None, make_context([4])
    )
    assert forged.tolist() == [[-2, 6]]


def test_noise_has_the_deviation_and_depends_on_client_and_round_alone():
    attack = Gaussian(share=0.5, sigma=0.5)
    own = torch.zeros(2, 10_000)
    first = attack.forge(own, None, make_context([2, 5]))
    assert first.std(dim=1).tolist() == pytest.approx([0.5, 0.5], rel=0.03)
    assert first.mean(dim=1).tolist() == pytest.approx([0, 0], abs=0.02)
    alone = attack.forge(own[:1], None, make_context([5]))
    assert torch.equal(first[1:], alone)
    later = attack.forge(own, None, make_context([2, 5], round=2))
    rows = torch.stack([*first, *later])
    correlated = torch.corrcoef(rows) - torch.eye(4)
    assert correlated.abs().max() < 0.04


def test_by_default_an_update_is_scaled_by_its_share_in_the_mean():
    own = torch.tensor([[1.0, -3], [2, 0], [1, 1]])
    shares = np.array([0.25, 0.5, 0])
    context = Context(1, 1, np.array([2, 5, 6]), 9, shares=shares)
    forged = Scale(share=0.5, server_lr=0.5).forge(own, own, context)
    assert forged.tolist() == [[8, -24], [8, 0], [1, 1]]
    assert Scale(share=0.5, factor=2).forge(own, own, context).tolist() == (
        (2 * own).tolist()
    )
