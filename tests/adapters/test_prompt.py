"""Prompts."""

import torch

from hpcfl.adapters import prompt
from hpcfl.models.attention import make_causal_mask

HIDDEN = -torch.inf


def test_a_masks_prompt_sees_nothing_of_the_sequence():
    behind = prompt.extend_mask(make_causal_mask(2, torch.device("cpu")), 2)
    assert torch.equal(behind, make_causal_mask(4, torch.device("cpu")))
    pairs = torch.tensor([[0, 1.0], [2, 3]]).expand(5, 1, 2, 2)
    rows = [[0, HIDDEN, HIDDEN], [0, 0, 1], [0, 2, 3]]
    assert torch.equal(
        prompt.extend_mask(pairs, 1), torch.tensor(rows).expand(5, 1, 3, 3)
    )
    padding = torch.tensor([[0, HIDDEN]]).expand(5, 1, 1, 2)
    assert prompt.extend_mask(padding, 3)[4].tolist() == [[[0, 0, 0, 0, HIDDEN]]]
    assert prompt.extend_mask(None, 3) is None
