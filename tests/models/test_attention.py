"""Attention and its masks."""

import torch

from hpcfl.models.attention import make_causal_mask


def test_a_token_attends_to_itself_and_earlier_tokens():
    mask = make_causal_mask(3, torch.device("cpu"))
    hidden = -torch.inf
    assert mask.tolist() == [[0, hidden, hidden], [0, 0, hidden], [0, 0, 0]]
