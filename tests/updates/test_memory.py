"""The rows that a plug-in remembers, as columns of wider rows."""

import pytest
import torch

from hpcfl.updates.memory import Memory


def test_the_columns_of_the_upload_are_read_and_written():
    state = {"update.0.rest": torch.tensor([[1.0, 2.0, 3.0]])}
    memory = Memory(state, 0, ("rest",), torch.tensor([2, 0]))
    assert memory["rest"].tolist() == [[3.0, 1.0]]
    before = state["update.0.rest"]
    memory["rest"] = torch.tensor([[7.0, 8.0]]).double()
    assert state["update.0.rest"].tolist() == [[8.0, 2.0, 7.0]]
    assert before.tolist() == [[1.0, 2.0, 3.0]]
    assert list(memory) == ["rest"] and len(memory) == 1
    with pytest.raises(TypeError):
        del memory["rest"]
