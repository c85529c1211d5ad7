"""CUDA graphs: a recorded function as one launch, where hundreds of small kernels would leave a GPU
waiting for the host."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Graphs:
    """Captured forms of one function for several numbers of lanes.

    A graph reads and writes fixed places. The places of inputs are shared: fewer lanes take the first rows
    of the widest tensor so far. So are those of what lies between, as no two graphs run at once and outputs
    are copied away.
    """

    def __init__(self) -> None:
        self._places: dict[Any, Tensor] = {}
        self._pool: Any = None

    def capture(self, function: Function, tensors: tuple[Tensor, ...]) -> Function:
        """``function`` for CUDA tensors of these shapes and strides, as a graph: the same kernels,
        so the same bits."""
        inputs = [self._place(position, tensor) for position, tensor in enumerate(tensors)]
        torch._foreach_copy_(inputs, list(tensors))
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # libraries choose algorithms and workspaces in the first call, which a capture must not do
            function(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = function(*inputs)
        self._pool = self._pool or graph.pool()

        def replay(*given: Tensor, _constants: Function = function) -> tuple[Tensor, ...]:
            """``_constants``: the graph reads tensors that belong to the function, which therefore
            has to stay."""
            torch._foreach_copy_(inputs, list(given))
            graph.replay()
            return tuple(output.clone() for output in outputs)

        return replay

    def _place(self, position: int, like: Tensor) -> Tensor:
        """Where graphs read this argument: a tensor of its shape and strides."""
        key = (position, like.shape[1:], like.stride(), like.dtype)
        if key not in self._places or len(self._places[key]) < len(like):
            self._places[key] = like.clone()
        return self._places[key][:len(like)]
