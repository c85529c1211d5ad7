"""Attention and its masks."""

import torch

from hpcfl.models.attention import make_causal_mask
from hpcfl.models.transformer import Block


def test_a_later_token_changes_no_bit_before_it():
    block, mask = Block(12, 3, 4, 7, 0.0), make_causal_mask(6, torch.device("cpu"))
    x = torch.randn(2, 6, 12)
    changed = x.clone()
    changed[:, 4] += 1
    before, after = block(x, mask), block(changed, mask)
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(dim=2).all()
