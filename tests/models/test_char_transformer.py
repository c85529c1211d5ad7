"""Transformer for characters."""

import torch

from hpcfl.models.char_transformer import plugin


def test_a_later_character_changes_no_bit_before_it():
    model = plugin(
        (6,), 3, vocabulary=20, width=8, depth=1, heads=2, head_width=4, hidden=8
    )
    model.eval()
    x = torch.randint(0, 19, (2, 6))
    changed = x.clone()
    changed[:, 4] += 1
    before, after = (
        model.compute_token_features(x),
        model.compute_token_features(changed),
    )
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(dim=2).all()
    assert torch.equal(model.features(x), before[:, 5])
