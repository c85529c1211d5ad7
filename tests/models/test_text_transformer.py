"""Transformer for short texts."""

import torch

from hpcfl.models.text_transformer import plugin


def test_the_class_token_depends_on_order_only_by_positions():
    torch.manual_seed(0)
    keys = {"vocabulary": 20, "width": 8, "depth": 1, "heads": 2, "hidden": 8}
    model = plugin((6,), 3, **keys).eval()
    x = torch.tensor([[3, 1, 4, 0, 0, 0]])
    turned, longer = x.flip(1), torch.tensor([[3, 1, 4, 5, 0, 0]])
    assert not torch.allclose(model.features(turned), model.features(x))
    torch.nn.init.zeros_(model.positions.position)
    torch.testing.assert_close(model.features(turned), model.features(x))
    assert not torch.allclose(model.features(longer), model.features(x))
