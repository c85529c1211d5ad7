"""CUDA graphs: a function of tensors as one launch.

Launched one by one, hundreds of small kernels would leave a GPU waiting for the host.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Graphs:
    """Captured graphs of one function for several numbers of lanes, which share their memory.

    A graph reads and writes at fixed addresses, its *places*. Graphs share the places of inputs: one for
    fewer lanes takes the first rows of the widest tensor so far. They share the memory of intermediate
    results and outputs, too, because no two graphs run at once and outputs are copied away.
    """

    def __init__(self) -> None:
        self._places: dict[Any, Tensor] = {}
        self._pool: Any = None

    def capture(self, function: Function, tensors: tuple[Tensor, ...]) -> Function:
        """``function`` for CUDA tensors of the shapes and strides of ``tensors``, as a graph.

        It runs the same kernels, so it gives the same bits.
        """
        inputs = [self._place(position, tensor) for position, tensor in enumerate(tensors)]
        torch._foreach_copy_(inputs, list(tensors))
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            # Libraries choose algorithms and workspaces in the first call, which a capture must not do.
            function(*inputs)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = function(*inputs)
        self._pool = self._pool or graph.pool()

        def replay(*given: Tensor, _constants: Function = function) -> tuple[Tensor, ...]:
            """Launch the graph, which also reads tensors of ``function``: ``_constants`` keeps it alive."""
            torch._foreach_copy_(inputs, list(given))
            graph.replay()
            return tuple(output.clone() for output in outputs)

        return replay

    def _place(self, position: int, like: Tensor) -> Tensor:
        """The tensor from which graphs read an argument, of the shape and strides of ``like``."""
        key = (position, like.shape[1:], like.stride(), like.dtype)
        if key not in self._places or len(self._places[key]) < len(like):
            self._places[key] = like.clone()
        return self._places[key][:len(like)]
