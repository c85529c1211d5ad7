"""Each change of a tensor is found, and reading it is none."""

import pytest
import torch

from hpcfl.rows.unchanged import Watch


def set_row(tensor):
    tensor[1] = 2


@pytest.mark.parametrize(
    "change",
    [
        set_row,
        lambda tensor: tensor.add_(1),
        lambda tensor: tensor.view(-1)[3:].zero_(),
        lambda tensor: tensor.detach().mul_(2),
        lambda tensor: torch.add(tensor, 1, out=tensor),
        lambda tensor: tensor.index_copy_(0, torch.tensor([1]), torch.ones(1, 3)),
    ],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_change_in_place_is_found(change, mode):
    with mode():
        tensors = {"changed": torch.zeros(5, 3), "other": torch.zeros(5, 3)}
        watch = Watch(tensors)
        change(tensors["changed"])
        assert watch.find_changed() == ["changed"]
        assert Watch(tensors).find_changed() == []


def test_reading_is_no_change():
    tensors = {
        "flags": torch.zeros(3, dtype=torch.bool),
        "round": torch.tensor(3),
        "empty": torch.zeros(0),
    }
    watch = Watch(tensors)
    tensors["flags"] = ~tensors["flags"]
    assert (tensors["round"] + 1).item() == 4
    assert watch.find_changed() == []


def test_gradients_pass_a_watched_tensor():
    tensor = torch.zeros(3, requires_grad=True)
    watch = Watch({"a": tensor})
    (tensor * 2).sum().backward()
    assert watch.find_changed() == []
    assert tensor.grad is not None
