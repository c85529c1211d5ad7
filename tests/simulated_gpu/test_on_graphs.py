"""Steps as graphs: used from the first rounds on, with few launches each, and not used
if wrong.
"""

import gc
import weakref

import torch
from on_gpu import TOLERANCE, apart

from hpcfl.clients.execution import Work, cuda_graphs
from hpcfl.clients.execution.cuda_graphs import Captures, Graphed, GraphKernel

WORK = Work({"weight": torch.empty(2)}, [], len)


def test_a_step_that_is_a_graph_is_few_launches(on_gpu, samples):
    """Four clients have equally many samples; the last batch of each epoch is a
    separate step.
    """
    seen = on_gpu(
        "fedprox",
        [[5, 5, 0, 0]] * 4,
        **samples("tiny:normalised"),
        rounds=3,
        evaluation={"every": 3},
        training={"batch_size": 4, "epochs": 2},
    )
    assert seen.gpu.ledger.captures
    assert seen.epochs[-1].launches < seen.epochs[0].launches / 2


def graphed_alone(function, what="the function", written=()):
    return Graphed(function, what, written, Captures())


def test_one_replay_of_a_training_is_compared(gpu):
    graphed = graphed_alone(lambda x: (x * 2.0,))
    for step in range(10):
        [doubled] = graphed(2, torch.full((2, 3), float(step), device="cuda"))
        assert doubled[0, 0].tolist() == 2 * step
    gpu.ledger.clear()
    graphed.begin()
    for _ in range(10):
        graphed(2, torch.ones(2, 3, device="cuda"))
    assert gpu.ledger.waits.total() == 1


def test_a_graph_changes_the_same_tensors_as_its_function(gpu):
    def function(x, total):
        total.add_(x)
        return (x * total,)

    graphed, total = graphed_alone(function, written=[1]), torch.zeros(2, device="cuda")
    products = []
    for _ in range(12):
        [product] = graphed(2, torch.ones(2, device="cuda"), total)
        products.append(product.tolist()[0])
    assert products == list(range(1, 13)) and total.tolist() == [12, 12]


def test_the_last_result_is_not_overwritten(gpu):
    """The losses of a step are needed until the end of an epoch."""
    graphed, kept = graphed_alone(lambda x: (x * 2.0, x.sum(dim=1))), []
    for step in range(10):
        *_, last = graphed(2, torch.full((2, 3), float(step), device="cuda"))
        kept.append(last)
    assert [last.tolist()[0] for last in kept] == [3.0 * step for step in range(10)]


def test_a_function_with_changing_numbers_runs_without_graph(gpu, printed_errors):
    factor, total = [2.0], torch.zeros(2, device="cuda")

    def function(x, total):
        total.add_(x)
        return (x * factor[0],)

    graphed = graphed_alone(function, "the loss 'mine'", written=[1])
    for _ in range(cuda_graphs.SOON + 5):
        graphed(2, torch.ones(2, device="cuda"), total)
    factor[0] = 2.5
    graphed.begin()
    for _ in range(3):
        [product] = graphed(2, torch.ones(2, device="cuda"), total)
        assert product.tolist() == [2.5, 2.5]
    assert total.tolist() == [cuda_graphs.SOON + 8] * 2
    assert "'mine' runs without a CUDA graph" in printed_errors()


def test_a_function_that_cannot_be_captured_runs_without_graph(gpu, printed_errors):
    """A graph cannot contain a number that the host computes in each call."""

    def function(x):
        return (x * torch.tensor([2.0]).to("cuda"),)

    graphed = graphed_alone(function)
    for _ in range(cuda_graphs.SOON + 2):
        [product] = graphed(2, torch.ones(2, device="cuda"))
        assert product.tolist() == [2.0, 2.0]
    assert "runs without a CUDA graph" in printed_errors()


def product(weights, x):
    return torch.einsum("lo,lbo->lb", weights, x).tanh(), weights.square().sum(dim=1)


def arguments(lanes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(lanes, *shape, generator=generator).to("cuda")
        for shape in ((3,), (4, 3))
    ]


def test_graphs_of_one_kernel_go_together(gpu, monkeypatch):
    """When one is freed, torch frees the memory of the others of its stream."""
    monkeypatch.setattr(cuda_graphs, "SOON", 0)
    monkeypatch.setattr(cuda_graphs, "MOST", 4)
    kernel, (weights, x) = GraphKernel(torch.nn.Identity(), 2), arguments(2, 0)
    graphs_left = []
    for key in range(6):
        graphed = kernel.prepare(key, lambda: product, WORK, [])
        result, _ = graphed(weights, x)
        assert torch.equal(result.cpu(), product(weights, x)[0].cpu())
        graphs_left.append(len(kernel._captures.graphs))
    assert graphs_left == [1, 2, 3, 4, 1, 2]


def test_graphs_end_without_the_collector_of_cycles(gpu, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "SOON", 0)
    kernel = GraphKernel(torch.nn.Identity(), 2)
    kernel.prepare(0, lambda: product, WORK, [])(*arguments(2, 0))
    [graph] = kernel._captures.graphs.values()
    reference = weakref.ref(graph)
    gc.disable()
    try:
        del kernel, graph
        assert reference() is None
    finally:
        gc.enable()


def test_a_graph_is_for_all_numbers_of_lanes_up_to_its_width(gpu):
    """The content of its other lanes has no effect."""
    graphed, most = graphed_alone(product), 12
    for lanes in (12, 11, 10, 9, 12, 11, 10, 9, 12, 3, 3, 3, 3):
        given = arguments(lanes, seed=lanes)
        if lanes == 11:
            given[0].mul_(torch.nan)
        for result, expected in zip(
            graphed(most, *given), product(*given), strict=True
        ):
            assert torch.equal(result.cpu().nan_to_num(), expected.cpu().nan_to_num())
    assert gpu.ledger.captures == 3


def test_another_memory_layout_is_read_by_the_same_graph(gpu, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "SOON", 0)
    graphed, (weights, x) = graphed_alone(product), arguments(5, 0)
    for given in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        result, _ = graphed(5, weights, given)
        assert torch.equal(result.cpu(), product(weights, x)[0].cpu())
    assert gpu.ledger.captures == 1


def test_a_table_may_choose_lanes_that_convolve_one_after_the_other(
    on_gpu, on_cpu, samples
):
    """The run ends as on the CPU up to rounding, also with graphs."""
    row = {
        "model": "cnn",
        "precision": "float32",
        "lanes": 3,
        "form": "loop",
        "seconds_per_sample": 1.0e-5,
        "peak_bytes": 1,
    }
    table = {"format": 1, "device": "simulated", "torch": "any", "rows": [row]}
    sections = {**samples("cnn"), "rounds": 3}
    counts = [[4, 4, 0, 0]] * 5
    seen = on_gpu("fedavg", counts, **sections, runtime={"lane_table": table})
    kernel = seen.played.prepared.resources.kernel
    assert (kernel.widest, kernel.form) == (3, "loop")
    assert seen.gpu.ledger.replays
    plain = on_cpu("fedavg", counts, **sections).state
    for name, tensor in seen.played.state.items():
        assert apart(tensor, plain[name]) < TOLERANCE
