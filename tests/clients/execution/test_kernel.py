"""Lanes in one batch compared with one lane at a time: the same parameters to rounding,
and bit for bit among batched lanes.
"""

import copy
import errno

import pytest
import tiny
import torch
from torch import nn
from torch.func import vmap

from hpcfl.clients import name_buffers
from hpcfl.clients.execution.batched import BatchedSession
from hpcfl.clients.execution.kernel import (
    SerialKernel,
    SerialSession,
    Work,
    is_batching_limit,
    is_full,
)
from hpcfl.clients.losses import Batch
from hpcfl.rows.layout import lay_out_buffers, make_row

COUNTS = [
    [8, 3, 0, 0],
    [0, 9, 2, 0],
    [1, 1, 1, 1],
    [1, 0, 6, 6],
    [0, 0, 5, 10],
    [5, 5, 5, 5],
    [2, 0, 0, 0],
    [4, 4, 4, 1],
]
EMPTY = 2  # the client without samples
LANES = [2, "all"]
HOW = [
    {},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"clip": 0.05},
    {"optimizer": "adam", "weight_decay": 0.01, "clip": 0.5},
    {"optimizer": "adamw", "weight_decay": 0.1},
]


CONVOLUTIONAL = {"name": "tiny:layered", "kind": "convolution"}


def clients(make_fleet, lanes, dtype=torch.float32, convolves=False, **training):
    """Return a fleet with one client without samples."""
    fleet = make_fleet(
        COUNTS,
        lanes=10_000_000 if lanes == "all" else lanes,
        dtype=dtype,
        model=CONVOLUTIONAL if convolves else None,
        **training,
    )
    fleet.resources.samples.train[EMPTY] = fleet.resources.samples.train[EMPTY][:0]
    if convolves:
        fleet.state[name_buffers("model")] = fleet.state[name_buffers("model")].to(
            dtype
        )
    return fleet


def train(
    make_fleet, rows_of, lanes, dtype, convolves=False, proximal=None, **training
):
    """Return trained rows, losses, and buffers of the clients."""
    fleet = clients(make_fleet, lanes, dtype, convolves, **training)
    rows = rows_of(fleet)
    trained = fleet.train(
        rows, epochs=2, proximal=None if proximal is None else (proximal, rows.flip(0))
    )
    return (
        trained,
        fleet.results.losses,
        fleet.state.get(name_buffers("model"), torch.zeros(0)),
    )


def worst(ours, theirs):
    """Return the largest difference relative to the size of a value."""
    return max(
        ((one - other).abs() / (1 + other.abs())).max().item()
        for one, other in zip(ours, theirs, strict=True)
        if one.numel()
    )


@pytest.mark.slow
@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize("training", HOW, ids=lambda how: "-".join(how) or "plain")
@pytest.mark.parametrize("proximal", [None, 0.5])
def test_lanes_agree_with_one_at_a_time_in_float64(
    make_fleet, rows_of, convolves, training, proximal
):
    how = torch.float64, convolves, proximal
    alone = train(make_fleet, rows_of, 1, *how, **training)
    for lanes in LANES:
        beside = train(make_fleet, rows_of, lanes, *how, **training)
        assert worst(beside, alone) < 1e-6


@pytest.mark.parametrize("training", HOW, ids=lambda how: "-".join(how) or "plain")
def test_lane_bits_do_not_depend_on_the_number_of_lanes(make_fleet, rows_of, training):
    alone = train(make_fleet, rows_of, "all", torch.float32, **training)
    for lanes in (2, 7):
        for one, other in zip(
            train(make_fleet, rows_of, lanes, torch.float32, **training),
            alone,
            strict=True,
        ):
            assert torch.equal(one, other)


def test_running_statistics_are_each_clients_own(make_fleet, rows_of):
    _, _, buffers = train(make_fleet, rows_of, "all", torch.float32, True)
    module = tiny.layered(None, 4, kind="convolution")
    before = make_row(lay_out_buffers(module), module)
    still = (buffers == before).all(dim=1).nonzero()[:, 0].tolist()
    assert still == [EMPTY] and len(buffers.unique(dim=0)) == len(COUNTS)


def test_a_serial_lane_has_its_samples_in_the_layout_of_its_weights():
    """In training and in predictions, for any layout of the given samples."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    kernel = SerialKernel(module)
    rows = {name: value.detach()[None] for name, value in module.named_parameters()}
    tensors = kernel.lay_out(rows)
    seen = []

    def predict(model, x, lane):
        seen.extend([x, model[0].weight])
        return model(x)

    def loss(model, batch, lane):
        return predict(model, batch.x, lane).sum()

    x, y = torch.ones(1, 5, 3, 8, 8), torch.zeros(1, 5, dtype=torch.int64)
    kernel.predict(tensors, x, {}, predict)
    session = kernel.begin(Work(tensors, list(tensors), loss))
    session.compute_gradients(slice(0, 1), Batch(x, y), {})
    assert len(seen) == 4
    for tensor in seen:
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_a_serial_lane_has_one_buffer_for_tied_ones():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    module[1].running_mean = module[0].running_mean
    tensors = {name: value[None].clone() for name, value in module.named_buffers()}
    SerialKernel(module).bind(tensors, [])
    assert module[1].running_mean is module[0].running_mean


@pytest.mark.parametrize("lanes", [1, 2, "auto"])
def test_no_lane_is_computed_for_a_client_that_has_finished(
    make_fleet, rows_of, monkeypatch, lanes
):
    """The kernel receives only as many lanes and samples as clients have mini-batches
    and samples left.
    """
    fleet = make_fleet(
        [[8, 0, 0, 0], [4, 0, 0, 0], [5, 0, 0, 0]], lanes=lanes
    )  # batches of 4
    given = []
    for kind in (SerialSession, BatchedSession):
        compute = kind.compute_gradients

        def counted(session, lanes, batch, variables, compute=compute):
            given.append(batch.x.shape[:2])
            return compute(session, lanes, batch, variables)

        monkeypatch.setattr(kind, "compute_gradients", counted)
    fleet.train(rows_of(fleet), epochs=1)
    assert sum(lane for lane, _ in given) == 2 + 1 + 2
    assert sum(lane * size for lane, size in given) == 17


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
    "unique": lambda x: x.unique().sum(),
    "repeats": lambda x: torch.repeat_interleave(x[0], (x[0] > 0).long()).sum(),
    "random": lambda x: nn.functional.dropout(x),
    "in place": add_in_place,
    "own function": lambda x: Doubled.apply(x),
    "gradient inside": gradient_inside,
    "equal": lambda x: x * float(torch.equal(x, x)),
    "copy": lambda x: copy.deepcopy(x.detach()),
    "sparse": lambda x: x.to_sparse() @ x.T,
    "batch norm": nn.BatchNorm1d(5),
}


@pytest.mark.parametrize("name", LIMITED)
def test_operators_that_fail_under_vmap_are_batching_limits(name):
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
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x63 and 64x10)"),
        torch.OutOfMemoryError("vmap: out of memory"),
    ],
)
def test_other_errors_are_no_batching_limits(error):
    assert not is_batching_limit(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("full"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_errors_of_a_full_gpu_are_recognised(error):
    assert is_full(error)
    assert not is_full(
        RuntimeError("CUDA error: an illegal memory access was encountered")
    )
