"""CUDA graphs: a function of tensors as one launch.

Launched one by one, hundreds of small kernels would leave a GPU waiting for the host.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Graphs:
    """Captured graphs of one function for several numbers of lanes, which share their memory.

    A graph reads and writes at fixed addresses, its *places*. Graphs share the places of inputs: one for
    fewer lanes takes the first rows of the widest tensor so far. They share the memory of intermediate
    results and of outputs, too, because no two graphs run at once: outputs are good until the next call of
    any of them.
    """

    def __init__(self) -> None:
        self._places: dict[Any, Tensor] = {}
        self._pool: Any = None

    def capture(self, make: Callable[[tuple[Tensor, ...]], Function], tensors: tuple[Tensor, ...],
                moved: Sequence[int] = ()) -> Function:
        """A function of CUDA tensors of the shapes of ``tensors``, as a graph.

        It runs the same kernels, so it gives the same bits.

        make: makes the function, given the places of its inputs.
        moved: positions of the arguments that it changes; a replay changes those that it is given.
        """
        inputs = tuple(self._place(position, tensor) for position, tensor in enumerate(tensors))
        _copy(inputs, tensors)
        function = make(inputs)
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

        def replay(*given: Tensor, _constants: Function = function) -> tuple[Tensor, ...]:
            """Launch the graph, which also reads tensors of ``function``: ``_constants`` keeps it alive."""
            _copy(inputs, given)
            graph.replay()
            _copy([given[position] for position in moved], [inputs[position] for position in moved])
            return outputs

        return replay

    def _place(self, position: int, like: Tensor) -> Tensor:
        """The tensor from which graphs read an argument: of the shape of ``like``, without gaps."""
        key = (position, like.shape[1:], like.dtype)
        if key not in self._places or len(self._places[key]) < len(like):
            self._places[key] = like.clone(memory_format=torch.contiguous_format)
        return self._places[key][:len(like)]


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
