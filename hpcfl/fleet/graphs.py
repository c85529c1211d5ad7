"""CUDA graphs: a recorded function as one launch, where hundreds of small kernels would leave a GPU
waiting for the host."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Graphs:
    """Captured forms of one function for several numbers of lanes.

    A graph reads and writes fixed places. The places of inputs are shared: fewer lanes take the first rows
    of the widest tensor so far. So are those of what lies between and of outputs, as no two graphs run at
    once: outputs are good until the next call of any of them.
    """

    def __init__(self) -> None:
        self._places: dict[Any, Tensor] = {}
        self._pool: Any = None

    def capture(self, make: Callable[[tuple[Tensor, ...]], Function], tensors: tuple[Tensor, ...],
                moved: Sequence[int] = ()) -> Function:
        """The function that ``make`` makes for the places of its inputs, as a graph for CUDA tensors of these
        shapes: the same kernels, so the same bits.

        moved: positions of tensors that it changes; a replay changes those that it is given.
        """
        inputs = tuple(self._place(position, tensor) for position, tensor in enumerate(tensors))
        _copy(inputs, tensors)
        function = make(inputs)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # libraries choose algorithms and workspaces in the first call, which a capture must not do
            function(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            # laid out as weights are, so that one kernel can add them all
            outputs = tuple(output.contiguous() for output in function(*inputs))
        self._pool = self._pool or graph.pool()

        def replay(*given: Tensor, _constants: Function = function) -> tuple[Tensor, ...]:
            """``_constants``: the graph reads tensors that belong to the function, which therefore
            has to stay."""
            _copy(inputs, given)
            graph.replay()
            _copy([given[position] for position in moved], [inputs[position] for position in moved])
            return outputs

        return replay

    def _place(self, position: int, like: Tensor) -> Tensor:
        """Where graphs read this argument: a tensor of its shape, without gaps."""
        key = (position, like.shape[1:], like.dtype)
        if key not in self._places or len(self._places[key]) < len(like):
            self._places[key] = like.clone(memory_format=torch.contiguous_format)
        return self._places[key][:len(like)]


def _copy(places: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Weights, which lie alike, by one kernel, the others by one each."""
    alike = [place.dtype == tensor.dtype == torch.float32 and place.stride() == tensor.stride()
             for place, tensor in zip(places, given, strict=True)]
    if any(alike):
        torch._foreach_copy_([place for place, one in zip(places, alike, strict=True) if one],
                             [tensor for tensor, one in zip(given, alike, strict=True) if one])
    for place, tensor, one in zip(places, given, alike, strict=True):
        if not one:
            place.copy_(tensor)
