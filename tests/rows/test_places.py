"""Rows written to their places, whatever torch is asked for."""

import pytest
import torch

from hpcfl.rows import places


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(
    "where", [slice(1, 3), torch.tensor([3, 0])], ids=["slice", "indices"]
)
def test_rows_lie_where_they_were_put(mode, where):
    whole, rows = torch.zeros(4, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected = whole.clone()
    expected[where] = rows
    torch.set_deterministic_debug_mode(mode)
    try:
        places.index_copy(whole, where, rows)
        assert (
            torch.equal(whole, expected)
            and torch.get_deterministic_debug_mode() == mode
        )
        with pytest.raises(IndexError):
            places.index_copy(whole, torch.tensor([9]), rows[:1])
        assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_deterministic_debug_mode(0)
