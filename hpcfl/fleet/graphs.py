"""CUDA graphs: a function of lanes as one launch.

Launched one by one, hundreds of small kernels would leave a GPU waiting for the host. A
graph is captured for one number of lanes. Clients run out of mini-batches one by one,
so there would be a graph for nearly every
number: lanes are added up to one of a few *widths*, and what comes out of these is
    dropped. That is done from the first call on, because libraries choose kernels by
    shape: it does not matter when a function begins to be a graph, and a resumed run
    may begin anew.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfl.fleet import comparing
from hpcfl.fleet.captures import Captures
from hpcfl.fleet.homes import Homes
from hpcfl.fleet.replay import Function, record

SOON = (
    3  # calls before a function is captured, which takes as long as some tens of them
)


def width(lanes: int, most: int) -> int:
    """How many lanes are computed for so many: numbers with three binary digits and
    zeros, up to ``most``.

    1 to 8, 10, 12, 14, 16, 20, … 32, 40, …: at most a quarter too many, and for up to
    100 lanes 23 widths.
    """
    step = 1 << max(0, (lanes - 1).bit_length() - 3)
    return min(-(-lanes // step) * step, most)


@dataclass(frozen=True)
class Update:
    """What a graph does after its function: ``apply(arguments, outputs)`` changes some
    arguments in place.

    changed: the positions of these arguments. begin: from here on arguments are not the
        function's.
    used_up: so many of the first outputs are for ``apply`` alone: no graph keeps memory
        for them.
    """

    apply: Callable[[Sequence[Tensor], Sequence[Tensor]], None]
    changed: Sequence[int]
    begin: int
    used_up: int


class Graphed:
    """A ``function`` of CUDA tensors ``[a, …]``, one row a lane, that becomes a graph
    once called often.

    Lanes do not see each other. Results are good until the next call. As in
    ``Replayed``, which does the same on a CPU, a number that the function reads from
    elsewhere stays what it was, and replays are compared with the function itself;
    ``check`` says whether they were in order, because the host has to wait for that.

    An argument that has a home is read and written there. The others, and what comes
    out, have *places*,
    which graphs for several widths share: one for fewer lanes takes the first rows.
        Memory of intermediate results is shared as well, because no two graphs run at
        once.

    what: names the function in an error.
    labels: the position of the argument that holds class numbers, if there is one.
    moved: positions of arguments that the function changes.
    captures: where graphs are captured; None for no graphs at all: the function alone
        gives the same bits.
    update: what follows the function; all that it changes has a home.
    """

    def __init__(
        self,
        function: Function,
        what: str,
        labels: int | None,
        moved: Sequence[int],
        captures: Captures | None,
        homes: Homes,
        update: Update | None,
    ):
        self._function, self._what, self._labels, self._moved = (
            function,
            what,
            labels,
            moved,
        )
        self._captures, self._homes, self._update = captures, homes, update
        self._written = [*moved, *(update.changed if update else ())]
        self._used_up = update.used_up if update else 0
        self._apart: list[Tensor] = []
        self._calls: Counter[Any] = Counter()
        self._places: dict[Any, Tensor] = {}
        self._mark = object()  # this function's among all captures

    def __call__(self, tensors: Sequence[Tensor], most: int) -> tuple[Tensor, ...]:
        """What the function gives for these lanes, but for what is used up.

        At ``most`` so many are computed: they fit the GPU.
        """
        wide = width(len(tensors[0]), most)
        homes = [self._homes.of(tensor) for tensor in tensors]
        signature = (
            wide,
            *(
                (
                    tensor.shape[1:],
                    tensor.dtype,
                    None if home is None else home.data_ptr(),
                )
                for tensor, home in zip(tensors, homes, strict=True)
            ),
        )
        self._calls[signature] += 1
        replays = self._calls[signature] - SOON
        if replays <= 0 or self._captures is None:
            return self._plain(tensors, wide)
        key = self._mark, signature
        if key not in self._captures.graphs:
            self._captures.graphs[key] = self._capture(
                self._captures, tensors, homes, wide
            )
        graph: Graph = self._captures.graphs[key]
        return (
            self._compared(graph, tensors)
            if comparing.is_due(replays)
            else graph(tensors)
        )

    def check(self) -> None:
        """Raises RunFailure if a replay did not give what the function gives; the host
        waits if anything was compared.
        """
        apart, self._apart = self._apart, []
        if apart and torch.stack(apart).any():
            raise comparing.refusal(self._what)

    def _plain(self, tensors: Sequence[Tensor], wide: int) -> tuple[Tensor, ...]:
        lanes = len(tensors[0])
        given = [
            tensor.contiguous() if lanes == wide else _widened(tensor, wide)
            for tensor in tensors
        ]
        outputs = self._computed(self._function, given)
        for position in self._written:
            if given[position] is not tensors[position]:
                tensors[position].copy_(given[position][:lanes])
        return tuple(output[:lanes] for output in outputs)

    def _computed(
        self, function: Function, given: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """What the function gives and its update leaves."""
        outputs = function(*self._of_function(given))
        if self._update is not None:
            self._update.apply(given, outputs)
        return tuple(output.contiguous() for output in outputs[self._used_up :])

    def _of_function(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The function's own arguments among all."""
        return tensors if self._update is None else tensors[: self._update.begin]

    def _compared(
        self, graph: "Graph", tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """A replay, and for ``check`` whether it gives what the function gives.

        Some kernels add in another order in each call; how far two calls are apart says
        how much. What is used up is compared as the recorded function gives it, because
        a replay leaves none of it; and what an
        update makes of it is not compared: that reads no number which is not a tensor.
        """
        graph.read(tensors)
        plain, again = (self._results(self._function, graph.inputs) for _ in range(2))
        used_up = (
            self._results(graph.function, graph.inputs)[: self._used_up]
            if self._used_up
            else []
        )
        found = graph(tensors)
        whole = [*used_up, *found, *(tensors[position] for position in self._moved)]
        self._apart += [
            comparing.apart(one, *(tensor[: len(one)] for tensor in others))
            for one, *others in zip(whole, plain, again, strict=True)
        ]
        return found

    def _results(self, function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
        """All that a function gives, and then what it makes of copies of the arguments
        that it changes.
        """
        given = self._copies(inputs)
        return [*function(*given), *(given[position] for position in self._moved)]

    def _copies(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The function's arguments, those that it changes as copies."""
        return tuple(
            tensor.clone() if position in self._moved else tensor
            for position, tensor in enumerate(self._of_function(tensors))
        )

    def _capture(
        self,
        captures: Captures,
        tensors: Sequence[Tensor],
        homes: Sequence[Tensor | None],
        wide: int,
    ) -> "Graph":
        inputs = tuple(
            self._place(position, tensor, wide) if home is None else home[:wide]
            for position, (tensor, home) in enumerate(zip(tensors, homes, strict=True))
        )
        function = record(self._function, self._copies(inputs), self._labels)
        # Called once to see its outputs' shapes: what is allocated within a capture is
        # in the memory that all graphs share, so that the places of outputs must be
        # there before.
        outputs = function(*self._copies(inputs))[self._used_up :]
        places = tuple(
            self._place(~number, one, wide) for number, one in enumerate(outputs)
        )
        del outputs
        graph, _ = captures.capture(
            lambda: function(*self._copies(inputs)),
            lambda: _copy(places, self._computed(function, inputs)),
        )
        at_home = {position for position, home in enumerate(homes) if home is not None}
        return Graph(graph, function, inputs, places, self._written, at_home)

    def _place(self, position: int, like: Tensor, wide: int) -> Tensor:
        """Rows from which graphs read an argument, ``[wide, …]`` without gaps; at first
        one lane's in all.

        Those with negative positions are written: by output number −1 − position.
        """
        key = (position, like.shape[1:], like.dtype)
        if key not in self._places or len(self._places[key]) < wide:
            self._places[key] = _widened(like[:1], wide)
        return self._places[key][:wide]


@dataclass(frozen=True)
class Graph:
    """A captured function, which it keeps alive, because the graph reads its constants.

    inputs, outputs: what the graph reads and leaves. written: positions of inputs that
        it changes.
    at_home: positions of inputs whose arguments lie there already.
    """

    graph: torch.cuda.CUDAGraph
    function: Function
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    written: Sequence[int]
    at_home: set[int]

    def read(self, tensors: Sequence[Tensor]) -> None:
        """Copy arguments ``[a, …]`` into the first rows of their places; the others
        keep what they had.
        """
        away = [
            (place, tensor)
            for position, (place, tensor) in enumerate(
                zip(self.inputs, tensors, strict=True)
            )
            if position not in self.at_home
        ]
        _copy(
            [place[: len(tensor)] for place, tensor in away],
            [tensor for _, tensor in away],
        )

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        self.read(tensors)
        lanes, others = len(tensors[0]), list[Tensor]()
        if lanes < len(
            self.inputs[0]
        ):  # lanes that are computed in vain, and may be other clients' at home
            others = [
                self.inputs[position][lanes:]
                for position in self.written
                if position in self.at_home
            ]
        kept = [torch.empty_like(rows) for rows in others]
        _copy(kept, others)
        self.graph.replay()
        _copy(others, kept)
        back = [position for position in self.written if position not in self.at_home]
        _copy(
            [tensors[position] for position in back],
            [self.inputs[position][:lanes] for position in back],
        )
        return tuple(output[:lanes] for output in self.outputs)


def _widened(tensor: Tensor, wide: int) -> Tensor:
    """A copy of ``tensor`` [a, …] as ``[wide, …]`` without gaps, its first row repeated
    at the end.
    """
    return torch.cat(
        [tensor, tensor[:1].expand(wide - len(tensor), *tensor.shape[1:])]
    ).contiguous()


def _copy(places: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors into their places: weights, which lie alike, by one kernel, the
    others by one each.
    """
    alike = [
        place.dtype == tensor.dtype == torch.float32
        and place.stride() == tensor.stride()
        for place, tensor in zip(places, given, strict=True)
    ]
    if any(alike):
        torch._foreach_copy_(
            [place for place, one in zip(places, alike, strict=True) if one],
            [tensor for tensor, one in zip(given, alike, strict=True) if one],
        )
    for place, tensor, one in zip(places, given, alike, strict=True):
        if not one:
            place.copy_(tensor)
