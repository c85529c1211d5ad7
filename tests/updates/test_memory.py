"""Rows that a plug-in stores, as columns of wider rows."""

import pytest
import torch

from hpcfl.updates.memory import open_memory

COLUMNS = torch.tensor([2, 0])


def test_the_columns_of_the_upload_are_read_and_written():
    state = {"update.0.rest": torch.tensor([[1.0, 2.0, 3.0]])}
    before = state["update.0.rest"]
    with open_memory(state, 0, ("rest",), COLUMNS) as memory:
        assert memory["rest"].tolist() == [[3.0, 1.0]]
        memory["rest"] = torch.tensor([[7.0, 8.0]]).double()
    assert state["update.0.rest"].tolist() == [[8.0, 2.0, 7.0]]
    assert before.tolist() == [[1.0, 2.0, 3.0]]
    with pytest.raises(KeyError), open_memory(state, 0, ("rest",), COLUMNS) as memory:
        del memory["rest"]


def test_a_name_that_was_not_declared_is_an_error():
    with pytest.raises(KeyError), open_memory({}, 0, (), COLUMNS) as memory:
        memory["rest"] = torch.zeros(1, 2)
