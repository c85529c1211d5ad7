"""Prompts."""

import torch

from hpcfl.adapters import prompt

HIDDEN = -torch.inf


def test_prompt_tokens_do_not_attend_to_the_sequence():
    """``test_kinds.py`` has causal masks and padding."""
    pairs = torch.tensor([[0, 1.0], [2, 3]]).expand(5, 1, 2, 2)
    rows = [[0, HIDDEN, HIDDEN], [0, 0, 1], [0, 2, 3]]
    expected = torch.tensor(rows).expand(5, 1, 3, 3)
    assert torch.equal(prompt.extend_mask(pairs, 1), expected)
