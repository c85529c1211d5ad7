"""Captured functions. Without a GPU a stand-in for CUDA's graphs runs the captured function again
on the same places."""

import gc
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from hpcfl.fleet.graphs import Graphs


class Graph:
    """What ``torch.cuda.CUDAGraph`` promises: a replay reads the places of the inputs and overwrites
    those of the outputs."""

    captured = None

    def pool(self):
        return "pool"

    def replay(self):
        function, inputs, outputs = self.captured
        for output, value in zip(outputs, function(*inputs), strict=True):
            output.copy_(value)


@pytest.fixture
def function(monkeypatch):
    """A function to capture; on a machine without a GPU inside the stand-in."""
    def compute(weights, x):
        if under_way:
            under_way[0].captured = (plain, [weights, x], result := plain(weights, x))
            return result
        return plain(weights, x)

    def plain(weights, x):
        return torch.einsum("lo,lbo->lb", weights, x).tanh(), weights.square().sum(dim=1)

    under_way: list[Graph] = []

    @contextmanager
    def capture(graph, pool=None):
        under_way.append(graph)
        yield
        under_way.clear()

    if not torch.cuda.is_available():
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, stand_in in {"Stream": lambda: stream, "current_stream": lambda: stream, "CUDAGraph": Graph,
                               "stream": lambda aside: nullcontext(), "graph": capture}.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
    return compute, plain


def arguments(lanes, seed):
    generator = torch.Generator().manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (torch.randn(lanes, 3, generator=generator).to(device),
            torch.randn(lanes, 4, 3, generator=generator).to(device))


def test_a_graph_keeps_the_function_whose_constants_it_reads(function):
    class Holder:
        constant = torch.ones(3)

    holder = Holder()
    there, tensors = weakref.ref(holder), arguments(2, 1)
    captured = Graphs().capture(
        lambda places, holder=holder: lambda *given, holder=holder: function[0](*given), tensors)
    del holder
    gc.collect()
    assert there() is not None and len(captured(*tensors)) == 2


def test_replays_give_the_functions_bits_until_the_next(function):
    compute, plain = function
    captured = Graphs().capture(lambda places: compute, arguments(5, 0))
    for seed in (1, 2):
        found = captured(*arguments(5, seed))
        for one, other in zip(found, plain(*arguments(5, seed)), strict=True):
            assert torch.equal(one, other)


def test_fewer_lanes_read_from_the_same_places(function):
    compute, plain = function
    graphs = Graphs()
    captured = {lanes: graphs.capture(lambda places: compute, arguments(lanes, 0)) for lanes in (5, 3, 2)}
    assert [len(place) for place in graphs._places.values()] == [5, 5]
    for lanes in (2, 5, 3, 5):
        for one, other in zip(captured[lanes](*arguments(lanes, lanes)), plain(*arguments(lanes, lanes)),
                              strict=True):
            assert torch.equal(one, other)


def test_another_memory_layout_is_read_from_the_same_places(function):
    compute, plain = function
    weights, x = arguments(5, 0)
    graphs = Graphs()
    for given in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        captured = graphs.capture(lambda places: compute, (weights, given))
        assert torch.equal(captured(weights, given)[0], plain(weights, given.contiguous())[0])
    assert len(graphs._places) == 2 and all(place.is_contiguous() for place in graphs._places.values())
