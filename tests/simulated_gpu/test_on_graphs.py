"""Steps as graphs: from the first rounds on, few launches each, and a wrong one is
noticed.
"""

import gc
import weakref

import pytest
import torch
from on_gpu import epoch_seconds

from hpcfl.clients.execution import BatchedKernel, batched, cuda_graphs
from hpcfl.clients.execution.batched import Recordable
from hpcfl.clients.execution.cuda_graphs import Captures, Graphed
from hpcfl.errors import RankFailure, RunFailure


def test_a_step_that_is_a_graph_is_few_launches(on_gpu, samples):
    """Of four clients with as many samples; the tail of each epoch is a step of its
    own.
    """
    seen = on_gpu(
        "fedprox",
        [[5, 5, 0, 0]] * 4,
        **samples("tiny:normalised"),
        rounds=6,
        evaluation={"every": 6},
        training={"batch_size": 4, "optimizer": "adamw", "clip": 1.0},
    )
    assert seen.gpu.ledger.captures
    assert seen.epochs[-1].launches < seen.epochs[0].launches / 2


def test_epochs_are_timed_when_their_steps_are_graphs(gpu, tmp_path):
    """As the benchmark of one GPU does; nothing is compared meanwhile."""
    assert epoch_seconds("cnn", tmp_path, (1, 16, 16), clients=2) > 0
    assert gpu.ledger.replays > 0


def graphed_alone(function, what="the function", written=()):
    return Graphed(function, what, None, written, Captures())


def test_replays_are_compared_without_a_wait(gpu):
    graphed = graphed_alone(lambda x: (x * 2.0,))
    for step in range(10):
        [doubled] = graphed(2, torch.full((2, 3), float(step), device="cuda"))
        assert doubled[0, 0].tolist() == 2 * step
    gpu.ledger.clear()
    for _ in range(10):
        graphed(2, torch.ones(2, 3, device="cuda"))
    assert not gpu.ledger.waits
    graphed.check()
    assert gpu.ledger.waits.total() == 1


def test_what_a_function_changes_is_changed_by_its_graph(gpu):
    def function(x, total):
        total.add_(x)
        return (x * total,)

    graphed, total = graphed_alone(function, written=[1]), torch.zeros(2, device="cuda")
    products = []
    for _ in range(12):
        [product] = graphed(2, torch.ones(2, device="cuda"), total)
        products.append(product.tolist()[0])
    graphed.check()
    assert products == list(range(1, 13)) and total.tolist() == [12, 12]


def test_the_last_result_is_not_overwritten(gpu):
    """The losses of a step are kept until the end of an epoch."""
    graphed, kept = graphed_alone(lambda x: (x * 2.0, x.sum(dim=1))), []
    for step in range(10):
        *_, last = graphed(2, torch.full((2, 3), float(step), device="cuda"))
        kept.append(last)
    assert [last.tolist()[0] for last in kept] == [3.0 * step for step in range(10)]


def test_a_number_that_changes_is_noticed(gpu):
    factor = [2.0]
    graphed = graphed_alone(lambda x: (x * factor[0],), "the loss 'mine'")
    for _ in range(cuda_graphs.SOON + 5):
        graphed(2, torch.ones(2, device="cuda"))
    factor[0] = 2.01
    for _ in range(11):
        graphed(2, torch.ones(2, device="cuda"))
    with pytest.raises(RunFailure, match="the loss 'mine' reads a number that changed"):
        graphed.check()


def product(weights, x):
    return torch.einsum("lo,lbo->lb", weights, x).tanh(), weights.square().sum(dim=1)


def arguments(lanes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(lanes, *shape, generator=generator).to("cuda")
        for shape in ((3,), (4, 3))
    ]


def test_graphs_of_one_kernel_go_together(gpu, monkeypatch):
    """With one that goes torch frees what the others of its stream compute in."""
    monkeypatch.setattr(cuda_graphs, "SOON", 0)
    monkeypatch.setattr(batched, "MOST", 4)
    kernel, (weights, x) = BatchedKernel(torch.nn.Identity(), 2), arguments(2, 0)
    graphs_left = []
    for key in range(6):
        graphed = kernel.graphed(Recordable(key, product, "the function"))
        result, _ = graphed(2, weights, x)
        assert torch.equal(result.cpu(), product(weights, x)[0].cpu())
        graphs_left.append(len(kernel._captures.graphs))
    assert graphs_left == [1, 2, 3, 4, 1, 2]


def test_graphs_end_without_the_collector_of_cycles(gpu, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "SOON", 0)
    kernel = BatchedKernel(torch.nn.Identity(), 2)
    kernel.graphed(Recordable(0, product, "the function"))(2, *arguments(2, 0))
    [graph] = kernel._captures.graphs.values()
    reference = weakref.ref(graph)
    gc.disable()
    try:
        del kernel, graph
        assert reference() is None
    finally:
        gc.enable()


def test_a_graph_is_for_all_numbers_of_lanes_up_to_its_width(gpu):
    """What its other lanes hold does not matter."""
    graphed, most = graphed_alone(product), 12
    for lanes in (12, 11, 10, 9, 12, 11, 10, 9, 12, 3, 3, 3, 3):
        given = arguments(lanes, seed=lanes)
        if lanes == 11:
            given[0].mul_(torch.nan)
        for result, expected in zip(
            graphed(most, *given), product(*given), strict=True
        ):
            assert torch.equal(result.cpu().nan_to_num(), expected.cpu().nan_to_num())
    graphed.check()
    assert gpu.ledger.captures == 3


def test_another_memory_layout_is_read_by_the_same_graph(gpu, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "SOON", 0)
    graphed, (weights, x) = graphed_alone(product), arguments(5, 0)
    for given in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        result, _ = graphed(5, weights, given)
        assert torch.equal(result.cpu(), product(weights, x)[0].cpu())
    assert gpu.ledger.captures == 1


def test_a_graph_keeps_the_function_whose_constants_it_reads(gpu, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "SOON", 0)
    kept, record = [], cuda_graphs.record
    monkeypatch.setattr(
        cuda_graphs, "record", lambda *given: kept.append(record(*given)) or kept[-1]
    )
    graphed = graphed_alone(product)
    graphed(2, *arguments(2, 0))
    reference = weakref.ref(kept.pop())
    gc.collect()
    assert reference() is not None


def test_the_round_in_which_it_is_noticed_fails(on_gpu, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "SOON", 1)
    with pytest.raises(RankFailure) as failure:
        on_gpu("tiny:Fades", [[4, 4, 0, 0]] * 2, rounds=8)
    assert isinstance(failure.value.__cause__, RunFailure)
