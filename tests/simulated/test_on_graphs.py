"""Steps as graphs: from the first rounds on, few launches each, and a wrong one is
noticed.
"""

import gc
import weakref

import pytest
import torch
from gpu.operations import name_of
from on_gpu import epoch_seconds

from hpcfl.errors import RankFailure, RunFailure
from hpcfl.fleet import comparing, graphs, recordings
from hpcfl.fleet.captures import Captures
from hpcfl.fleet.graphs import Graphed, Update
from hpcfl.fleet.homes import Homes

# Of one step on plain SGD: copies of x and of y into the graph's places, the graph, the
# losses, and what a training does once for few steps.
LAUNCHES = 20
ZEROED = 10  # more a step where a training of three steps begins with Adam's moments


@pytest.mark.parametrize(
    ("model", "training", "kernels", "beside"),
    [
        ("mlp", {}, 30, 25),
        ("cnn", {}, 65, 40),
        ("tiny:normalised", {}, 70, 60),
        ("cnn", {"optimizer": "adamw", "clip": 1.0, "weight_decay": 0.1}, 120, 96),
    ],
)
def test_steps_are_graphs_from_the_fourth_on(
    on_gpu, samples, model, training, kernels, beside
):
    """Of four clients with as many samples; the tail of each epoch is a step of its
    own.

    kernels: the most in a graph; an addition at indices would be thirty. beside: the
    most of these that do not belong to convolutions and products.
    """
    seen = on_gpu(
        "fedprox",
        [[5, 5, 0, 0]] * 4,
        **samples(model),
        rounds=6,
        evaluation={"every": 6},
        training={"batch_size": 4, **training},
    )
    assert seen.gpu.ledger.captures == 2
    last = seen.epochs[-1]
    assert (
        last.turns == 3
        and last.launches
        <= (LAUNCHES + ZEROED * ("optimizer" in training)) * last.turns
    )
    assert seen.epochs[0].launches > 3 * last.launches
    assert seen.gpu.ledger.in_graphs.total() <= kernels * seen.gpu.ledger.replays
    assert (
        sum(
            entry.kernels
            for entry in seen.gpu.replayed._entries
            if not is_product(entry)
        )
        <= beside
    )


def is_product(entry):
    """A product, or what a convolution by products does beside it: patches are made,
    biases added, layouts changed, and all that backwards. In these models only images
    of lanes have so many dimensions.
    """
    name = name_of(entry.operation)
    return name in ("bmm", "unfold_backward") or (
        name in ("clone", "add", "sum") and entry.results[0].dim() >= 5
    )


def test_epochs_are_timed_when_their_steps_are_graphs(gpu, tmp_path):
    """As the benchmark of convolutions' forms does; nothing is compared meanwhile."""
    assert epoch_seconds("cnn", tmp_path, (1, 16, 16), clients=2) > 0
    assert gpu.ledger.captures == 1 and gpu.ledger.replays == 7 * 8 - graphs.SOON


def graphed_alone(
    function, what="the function", moved=(), homes=None, update=None, captures=None
):
    captures = captures or Captures()
    return Graphed(
        function, what, None, moved, captures, homes or Homes(captures.forget), update
    )


def test_replays_are_compared_without_a_wait(gpu):
    graphed = graphed_alone(lambda x: (x * 2.0,))
    for step in range(10):
        assert (
            graphed([torch.full((2, 3), float(step), device="cuda")], 2)[0][
                0, 0
            ].tolist()
            == 2 * step
        )
    gpu.ledger.clear()
    for _ in range(10):
        graphed([torch.ones(2, 3, device="cuda")], 2)
    assert not gpu.ledger.waits and graphed._apart
    graphed.check()
    assert not graphed._apart and gpu.ledger.waits.total() == 1


def test_what_a_function_changes_is_changed_by_its_graph(gpu):
    def function(x, total):
        total.add_(x)
        return (x * total,)

    graphed, total = graphed_alone(function, moved=[1]), torch.zeros(2, device="cuda")
    found = [
        graphed([torch.ones(2, device="cuda"), total], 2)[0].tolist()[0]
        for _ in range(12)
    ]
    graphed.check()
    assert found == list(range(1, 13)) and total.tolist() == [12, 12]


def test_what_has_a_home_is_not_copied_and_other_lanes_keep_theirs(gpu, monkeypatch):
    """Nine lanes are computed as ten. A home for more lanes lies elsewhere, and the
    graph is made anew.
    """
    monkeypatch.setattr(graphs, "SOON", 0)
    monkeypatch.setattr(comparing, "is_due", lambda number: False)
    captures = Captures()
    homes = Homes(captures.forget)
    graphed = graphed_alone(
        lambda weights, x: (weights * x,),
        homes=homes,
        captures=captures,
        update=Update(
            lambda given, outputs: given[0].add_(outputs[0] * given[2]),
            changed=[0],
            begin=2,
            used_up=0,
        ),
    )
    for most in (10, 12):
        start, rates = torch.arange(float(most)), torch.arange(1.0, most + 1)
        weights, rate = (
            homes.settle("kind", {name: tensor.to("cuda")})[name]
            for name, tensor in (("weights", start), ("rate", rates))
        )
        x = torch.full((9,), 2.0, device="cuda")
        graphed([weights[:9], x, rate[:9]], most)  # captures
        gpu.ledger.clear()
        [products] = graphed([weights[:9], x, rate[:9]], most)
        once = start * (1 + 2 * rates)
        expected = torch.where(torch.arange(most) < 9, once * (1 + 2 * rates), start)
        assert (
            weights.tolist() == expected.tolist()
            and products.tolist() == (2 * once[:9]).tolist()
        )
        # of x, and twice of the tenth lane's weights, which are those of another client
        assert gpu.ledger.launches == {"_foreach_copy_": 3}


def test_a_number_that_changes_is_noticed(gpu):
    factor = [2.0]
    graphed = graphed_alone(lambda x: (x * factor[0],), "the loss 'mine'")
    for _ in range(graphs.SOON + 5):
        graphed([torch.ones(2, device="cuda")], 2)
    factor[0] = 2.01
    for _ in range(11):
        graphed([torch.ones(2, device="cuda")], 2)
    with pytest.raises(RunFailure, match="the loss 'mine' reads a number that changed"):
        graphed.check()


def stepping(gpu, factor):
    """A step whose gradient alone has to do with ``factor``; call it with weights that
    are at home.
    """
    captures = Captures()
    homes = Homes(captures.forget)
    graphed = graphed_alone(
        lambda weights, x: (x * factor[0], x.sum(dim=1)),
        "the loss 'mine'",
        homes=homes,
        captures=captures,
        update=Update(
            lambda given, outputs: given[0].sub_(outputs[0]),
            changed=[0],
            begin=2,
            used_up=1,
        ),
    )
    weights = homes.settle("tensors", {"weights": torch.zeros(2, 3, device="cuda")})[
        "weights"
    ]
    return graphed, captures, [weights, torch.ones(2, 3, device="cuda")]


def test_gradients_that_an_update_used_up_take_no_memory(gpu):
    graphed, captures, given = stepping(gpu, [2.0])
    found = [graphed(given, 2) for _ in range(graphs.SOON + 2)]
    graphed.check()
    assert all(len(outputs) == 1 and outputs[0].tolist() == [3, 3] for outputs in found)
    assert given[0].tolist() == [[-2.0 * len(found)] * 3] * 2
    [graph] = captures.graphs.values()
    assert len(graph.outputs) == 1


def test_a_number_that_only_these_gradients_depend_on_is_noticed(gpu):
    factor = [2.0]
    graphed, _, given = stepping(gpu, factor)
    for step in range(graphs.SOON + 16):
        factor[0] = 2.0 if step < graphs.SOON + 4 else 2.01
        graphed(given, 2)
    with pytest.raises(RunFailure, match="the loss 'mine' reads a number that changed"):
        graphed.check()


def test_graphs_of_one_kernel_go_together(gpu, monkeypatch):
    """With one that goes torch frees what the others of its stream compute in."""
    monkeypatch.setattr(graphs, "SOON", 0)
    monkeypatch.setattr(recordings, "MOST", 4)
    made, (weights, x) = recordings.Recordings(True), arguments(2, 0)
    left, pools = [], []
    for key in range(6):
        function = made.graphed(recordings.Recordable(key, product, "the function"), [])
        assert torch.equal(
            function([weights, x], 2)[0].cpu(), product(weights, x)[0].cpu()
        )
        left.append(len(made._captures.graphs))
        pools.append(made._captures._pool)
    assert left == [1, 2, 3, 4, 1, 2] and len(made._made) == 4
    assert pools[0] is pools[3] and pools[3] is not pools[4] and pools[4] is pools[5]


def test_graphs_end_without_the_collector_of_cycles(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "SOON", 0)
    made = recordings.Recordings(True)
    given = [
        made.settle("tensors", {"weights": arguments(2, 0)[0]})["weights"],
        arguments(2, 0)[1],
    ]
    made.graphed(recordings.Recordable(0, product, "the function"), [])(given, 2)
    [graph] = made._captures.graphs.values()
    there = weakref.ref(graph)
    gc.disable()
    try:
        del made, graph
        assert there() is None
    finally:
        gc.enable()


def product(weights, x):
    return torch.einsum("lo,lbo->lb", weights, x).tanh(), weights.square().sum(dim=1)


def arguments(lanes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(lanes, *shape, generator=generator).to("cuda")
        for shape in ((3,), (4, 3))
    ]


def test_a_graph_is_for_all_numbers_of_lanes_up_to_its_width(gpu):
    """And reads from the places of the widest so far. What its other lanes hold does
    not matter.
    """
    graphed, most = graphed_alone(product), 12
    for lanes in (12, 11, 10, 9, 12, 11, 10, 9, 12, 3, 3, 3, 3):
        given = arguments(lanes, seed=lanes)
        if lanes == 11:
            given[0].mul_(torch.nan)
        for one, other in zip(graphed(given, most), product(*given), strict=True):
            assert torch.equal(one.cpu().nan_to_num(), other.cpu().nan_to_num())
    graphed.check()
    assert gpu.ledger.captures == 3 and {
        len(place) for place in graphed._places.values()
    } == {12}


def test_another_memory_layout_is_read_from_the_same_places(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "SOON", 0)
    graphed, (weights, x) = graphed_alone(product), arguments(5, 0)
    for given in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        assert torch.equal(
            graphed([weights, given], 5)[0].cpu(), product(weights, x)[0].cpu()
        )
    assert gpu.ledger.captures == 1 and all(
        place.is_contiguous() for place in graphed._places.values()
    )


def test_a_graph_keeps_the_function_whose_constants_it_reads(gpu, monkeypatch):
    monkeypatch.setattr(graphs, "SOON", 0)
    kept, record = [], graphs.record
    monkeypatch.setattr(
        graphs, "record", lambda *given: kept.append(record(*given)) or kept[-1]
    )
    graphed = graphed_alone(product)
    graphed(arguments(2, 0), 2)
    there = weakref.ref(kept.pop())
    gc.collect()
    assert there() is not None


def test_clients_that_run_out_one_by_one_share_few_graphs(
    on_gpu, federate, monkeypatch
):
    """Of 24 clients one has 24 mini-batches, one 23, and so on: 1 to 8 lanes, then 10,
    12, 14, 16, 20, 24.
    """
    monkeypatch.setattr(graphs, "SOON", 0)
    counts = [[full, full, 0, 0] for full in range(1, 25)]
    sections = {"rounds": 1, "training": {"batch_size": 2}}
    seen = on_gpu("fedavg", counts, **sections)
    plain = federate(
        "fedavg", counts, **sections, runtime={"device": "cpu", "lanes": 1024}
    )
    assert torch.equal(seen.played.state["server model"], plain.server["model"])
    assert seen.gpu.ledger.captures == 14
    computed = seen.played.prepared.resources.lane_steps
    assert (
        computed.needed == sum(range(25)) and computed.computed == computed.needed + 16
    )


def test_the_round_in_which_it_is_noticed_fails(on_gpu, monkeypatch):
    monkeypatch.setattr(graphs, "SOON", 1)
    with pytest.raises(RankFailure) as failure:
        on_gpu("tiny:Fades", [[4, 4, 0, 0]] * 2, rounds=8)
    assert isinstance(failure.value.__cause__, RunFailure)


def test_a_method_records_its_losses_once(on_gpu):
    """A loss made anew in each round would be captured anew."""
    seen = on_gpu({"name": "fedrod", "order": "separate"}, [[4, 4, 0, 0]] * 2, rounds=3)
    assert len(seen.played.prepared.resources.kernel._recordings._made) == 2
