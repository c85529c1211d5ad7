"""The simulated device raises errors like a GPU, and counts."""

import gc

import pytest
import torch
from gpu.device import IllegalInCapture, WrongDevice

from hpcfl.clients.execution.cuda_graphs import Captures


def captured(function, *given):
    """Return a graph of a function, after the call in which libraries select their
    algorithms.
    """
    return Captures().capture(lambda: function(*given), lambda: function(*given))


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, y: x + y,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: y[x.long()],
        lambda x, y: x.index_copy_(0, y.long(), x),
    ],
)
def test_tensors_of_two_devices_do_not_mix(gpu, mixed):
    with pytest.raises(WrongDevice):
        mixed(torch.zeros(3, device="cuda"), torch.ones(3))


def test_waits_and_copies_are_counted(gpu):
    x = torch.ones(3).to("cuda")
    pinned = torch.empty(3, pin_memory=True)
    pinned.copy_(x, non_blocking=True)
    assert gpu.ledger.waits.total() == 1
    x.sum().item()
    assert [(copy.to_gpu, copy.pinned, copy.bytes) for copy in gpu.ledger.copies] == [
        (True, False, 12),
        (False, True, 12),
    ]
    assert gpu.ledger.waits.total() == 2 and gpu.ledger.launched == 1
    x[x > 0]
    assert gpu.ledger.waits.total() == 3


@pytest.mark.parametrize(
    "illegal",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: x + torch.ones(3).to("cuda"),
        lambda x: torch.rand(3, device="cuda"),
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_a_capture_refuses_operations_that_graphs_cannot_contain(gpu, illegal):
    with pytest.raises(IllegalInCapture):
        captured(illegal, torch.ones(3, device="cuda"))


def test_another_graph_may_overwrite_intermediate_results(gpu):
    x = torch.ones(3, device="cuda")
    kept = []
    graph, result = captured(lambda x: kept.append((2 * x).detach()) or kept[-1] + 1, x)
    values = kept[-1].values
    kept.clear()
    gc.collect()
    other, _ = captured(lambda x: x + 1, x)
    graph.replay()
    assert values.tolist() == [2.0] * 3
    other.replay()
    assert values.isnan().all() and result.tolist() == [3.0] * 3


def test_tensor_lists_of_one_memory_layout_need_one_kernel(gpu):
    alike = [torch.zeros(3, 4, device="cuda") for _ in range(5)]
    gpu.ledger.clear()
    torch._foreach_add_(alike, 1.0)
    assert gpu.ledger.launched == 1
    torch._foreach_add_(alike, [torch.zeros(4, 3, device="cuda").T] * 5)
    assert gpu.ledger.launched == 1 + 1 + 5  # the zeros, and one for each
