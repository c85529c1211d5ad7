"""Known limits of batching are told from any other error."""

import copy
import errno

import pytest
import torch
from torch import nn
from torch.func import vmap

from hpcfl.clients.execution.limits import is_batching_limit


def keep_last(x):
    x.data.mul_(2)
    return x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


def add_in_place(x):
    return torch.zeros(5).add_(x[0])


def gradient_inside(x):
    weights = torch.ones(5, requires_grad=True) * x
    return torch.autograd.grad(weights.sum(), x)[0]


LIMITED = {
    "item": lambda x: x * x.sum().item(),
    "branch": lambda x: x if x.sum() > 0 else -x,
    "numpy": lambda x: x * float(x.detach().numpy().sum()),
    "list": lambda x: x * sum(x[0].tolist()),
    "mask": lambda x: x[x > 0].sum(),
    "unique": lambda x: x.unique().sum(),
    "nonzero": lambda x: x.nonzero().sum(),
    "repeats": lambda x: torch.repeat_interleave(x[0], (x[0] > 0).long()).sum(),
    "random": lambda x: nn.functional.dropout(x),
    "in place": add_in_place,
    "filled": lambda x: torch.zeros(4, 5).copy_(x),
    "own function": lambda x: Doubled.apply(x),
    "gradient inside": gradient_inside,
    "data": keep_last,
    "equal": lambda x: x * float(torch.equal(x, x)),
    "copy": lambda x: copy.deepcopy(x.detach()),
    "sparse": lambda x: x.to_sparse() @ x.T,
    "batch norm": nn.BatchNorm1d(5),
}


@pytest.mark.parametrize("name", LIMITED)
def test_what_runs_for_one_client_only_is_a_limit_of_batching(name):
    function = LIMITED[name]
    x = torch.linspace(-1, 1, 60).view(3, 4, 5).requires_grad_()
    function(x[0])
    with pytest.raises((RuntimeError, NotImplementedError)) as met:
        vmap(function)(x)
    assert is_batching_limit(met.value)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle: torch._functorch.vmap"),
        MemoryError("vmap"),
        ImportError("torch._functorch.vmap"),
        RuntimeError("can't start new thread"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x63 and 64x10)"),
        torch.OutOfMemoryError("vmap: out of memory"),
        ValueError("vmap"),
        KeyboardInterrupt(),
    ],
)
def test_any_other_error_is_none(error):
    assert not is_batching_limit(error)
