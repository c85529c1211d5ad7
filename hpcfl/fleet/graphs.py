"""CUDA graphs: a function of lanes as one launch.

Launched one by one, hundreds of small kernels would leave a GPU waiting for the host. A graph is captured for
one number of lanes. Clients run out of mini-batches one by one, so there would be a graph for nearly every
number: lanes are added up to one of a few *widths*, and what comes out of these is dropped. That is done
from the first call on, because libraries choose kernels by shape: it does not matter when a function begins
to be a graph, and a resumed run may begin anew.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfl.fleet import comparing
from hpcfl.fleet.replay import Function, record

SOON = 3  # calls before a function is captured, which takes as long as some tens of them


def width(lanes: int, most: int) -> int:
    """How many lanes are computed for so many: numbers with three binary digits and zeros, up to ``most``.

    1 to 8, 10, 12, 14, 16, 20, … 32, 40, …: at most a quarter too many, and for up to 100 lanes 23 widths.
    """
    step = 1 << max(0, (lanes - 1).bit_length() - 3)
    return min(-(-lanes // step) * step, most)


class Graphed:
    """A ``function`` of CUDA tensors ``[a, …]``, one row a lane, that becomes a graph once called often.

    Lanes do not see each other. Results are good until the next call. As in ``Replayed``, which does the same
    on a CPU, a number that the function reads from elsewhere stays what it was, and replays are compared with
    the function itself; ``check`` says whether they were in order, because the host has to wait for that.

    Graphs for several widths share their memory: that of inputs, their *places*, of which one for fewer lanes
    takes the first rows; and that of intermediate results and outputs, because no two graphs run at once.

    what: names the function in an error.
    labels: the position of the argument that holds class numbers, if there is one.
    moved: positions of arguments that the function changes.
    captures: whether there are graphs at all; without, the function alone gives the same bits.
    """

    def __init__(self, function: Function, what: str = "the function", labels: int | None = None,
                 moved: Sequence[int] = (), captures: bool = True):
        self._function, self._what, self._labels, self._moved = function, what, labels, moved
        self._captures = captures
        self._apart: list[Tensor] = []
        self._calls: Counter[Any] = Counter()
        self._graphs: dict[Any, Graph] = {}
        self._places: dict[Any, Tensor] = {}
        self._pool: Any = None

    def __call__(self, tensors: Sequence[Tensor], most: int) -> tuple[Tensor, ...]:
        """What the function gives for these lanes. At ``most`` so many are computed: they fit the GPU."""
        lanes = len(tensors[0])
        wide = width(lanes, most)
        signature = (wide, *((tensor.shape[1:], tensor.dtype) for tensor in tensors))
        self._calls[signature] += 1
        replays = self._calls[signature] - SOON
        if replays <= 0 or not self._captures:
            return self._plain(tensors, wide)
        if signature not in self._graphs:
            self._graphs[signature] = self._capture(tensors, wide)
        graph = self._graphs[signature]
        return self._compared(graph, tensors) if comparing.is_due(replays) else graph(tensors)

    def check(self) -> None:
        """Raises RunFailure if a replay did not give what the function gives; the host waits if anything was
        compared."""
        apart, self._apart = self._apart, []
        if apart and torch.stack(apart).any():
            raise comparing.refusal(self._what)

    def _plain(self, tensors: Sequence[Tensor], wide: int) -> tuple[Tensor, ...]:
        lanes = len(tensors[0])
        given = [tensor.contiguous() if lanes == wide else _widened(tensor, wide) for tensor in tensors]
        outputs = self._function(*given)
        for position in self._moved:
            if given[position] is not tensors[position]:
                tensors[position].copy_(given[position][:lanes])
        return tuple(output[:lanes] for output in outputs)

    def _compared(self, graph: "Graph", tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """A replay, and for ``check`` whether it gives what the function gives.

        Some kernels add in another order in each call; how far two calls are apart says how much.
        """
        graph.read(tensors)
        plain, again = ([*self._function(*given), *(given[position] for position in self._moved)]
                        for given in (self._copies(graph.inputs), self._copies(graph.inputs)))
        found = graph(tensors)
        whole = [*found, *(tensors[position] for position in self._moved)]
        self._apart += [comparing.apart(one, *(tensor[:len(one)] for tensor in others))
                        for one, *others in zip(whole, plain, again, strict=True)]
        return found

    def _copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The arguments, those that the function changes as copies."""
        return [tensor.clone() if position in self._moved else tensor
                for position, tensor in enumerate(tensors)]

    def _capture(self, tensors: Sequence[Tensor], wide: int) -> "Graph":
        inputs = tuple(self._place(position, tensor, wide) for position, tensor in enumerate(tensors))
        function = record(self._function, inputs, self._labels)
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            # Libraries choose algorithms and workspaces in the first call, which a capture must not do.
            function(*inputs)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            # laid out as weights are, so that one kernel can add them all
            outputs = tuple(output.contiguous() for output in function(*inputs))
        self._pool = self._pool or graph.pool()
        return Graph(graph, function, inputs, outputs, self._moved)

    def _place(self, position: int, like: Tensor, wide: int) -> Tensor:
        """Rows from which graphs read an argument, ``[wide, …]`` without gaps; at first one lane's in all."""
        key = (position, like.shape[1:], like.dtype)
        if key not in self._places or len(self._places[key]) < wide:
            self._places[key] = _widened(like[:1], wide)
        return self._places[key][:wide]


@dataclass(frozen=True)
class Graph:
    """A captured function, which it keeps alive, because the graph reads its constants.

    inputs, outputs: the places that the graph reads and writes. moved: as for ``Graphed``.
    """

    graph: torch.cuda.CUDAGraph
    function: Function
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    moved: Sequence[int]

    def read(self, tensors: Sequence[Tensor]) -> None:
        """Copy arguments ``[a, …]`` into the first rows of their places; the others keep what they had."""
        _copy([place[:len(tensor)] for place, tensor in zip(self.inputs, tensors, strict=True)], tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        self.read(tensors)
        self.graph.replay()
        lanes = len(tensors[0])
        _copy([tensors[position] for position in self.moved],
              [self.inputs[position][:lanes] for position in self.moved])
        return tuple(output[:lanes] for output in self.outputs)


def _widened(tensor: Tensor, wide: int) -> Tensor:
    """A copy of ``tensor`` [a, …] as ``[wide, …]`` without gaps, its first row repeated at the end."""
    return torch.cat([tensor, tensor[:1].expand(wide - len(tensor), *tensor.shape[1:])]).contiguous()


def _copy(places: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors into their places: weights, which lie alike, by one kernel, the others by one each."""
    alike = [place.dtype == tensor.dtype == torch.float32 and place.stride() == tensor.stride()
             for place, tensor in zip(places, given, strict=True)]
    if any(alike):
        torch._foreach_copy_([place for place, one in zip(places, alike, strict=True) if one],
                             [tensor for tensor, one in zip(given, alike, strict=True) if one])
    for place, tensor, one in zip(places, given, alike, strict=True):
        if not one:
            place.copy_(tensor)
