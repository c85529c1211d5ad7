"""Blocks of transformers."""

import pytest
import torch
from torch import nn

from hpcfl.models.attention import make_causal_mask
from hpcfl.models.transformer import Block


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_block_is_torchs_encoder_layer(norm_first):
    """With the same weights, in evaluation mode; ``in_proj`` is torch's name of qkv."""
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        12, 3, 7, activation="gelu", batch_first=True, norm_first=norm_first
    )
    block = Block(12, 3, 4, 7, 0.1, norm_first=norm_first)
    renamed = {
        name.replace("self_attn.in_proj_", "attention.qkv.").replace(
            "self_attn.out_proj", "attention.out"
        ): tensor
        for name, tensor in theirs.state_dict().items()
    }
    block.load_state_dict(renamed)
    x, mask = torch.randn(2, 5, 12), make_causal_mask(5, torch.device("cpu"))
    for given in (None, mask):
        expected = theirs.eval()(x, given)
        torch.testing.assert_close(block.eval()(x, given), expected, rtol=0, atol=2e-6)
