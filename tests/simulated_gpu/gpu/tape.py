"""A CUDA graph: what was captured runs again, on the same memory."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu import operations
from gpu.memory import Pool
from gpu.tensor import each, tensors_in


@dataclass(frozen=True)
class Entry:
    """One operation: what it was given and, on the CPU, the places of its results."""

    operation: Any
    args: Any
    kwargs: Any
    results: list[Tensor]
    kernels: int


class Tape:
    """Stands for ``torch.cuda.CUDAGraph``."""

    def __init__(self, gpu):
        self._gpu = gpu
        self._entries: list[Entry] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self.memory = Pool()

    def pool(self) -> Pool:
        return self.memory

    def note(self, operation, args, kwargs, result, kernels: int) -> None:
        """One more operation. Its tensors are shown anew: an operation such as
        ``unsqueeze_`` may still give those at hand another shape.
        """
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            args, kwargs, results = each(
                _shown_anew, (args, kwargs, tensors_in(result))
            )
        self._entries.append(Entry(operation, args, kwargs, results, kernels))

    def keep(self, tensors: list[Tensor]) -> None:
        """What may be written to while the graph is captured, which on a GPU runs
        nothing.
        """
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            self._before += [(tensor.detach(), tensor.clone()) for tensor in tensors]

    def undo(self) -> None:
        """Everything that was kept is again as it was, what was kept first last."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for tensor, values in reversed(self._before):
                tensor.copy_(values)
        self._before.clear()

    def replay(self) -> None:
        gpu = self._gpu
        gpu.ledger.replays += 1
        for entry in self._entries:
            gpu.ledger.in_graphs[operations.name_of(entry.operation)] += entry.kernels
        if gpu.replayed is not None:
            gpu.replayed.spoil()
        gpu.replayed = self
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for entry in self._entries:
                found = tensors_in(entry.operation(*entry.args, **entry.kwargs))
                for place, value in zip(entry.results, found, strict=True):
                    if place.data_ptr() != value.data_ptr():
                        place.copy_(value)

    def spoil(self) -> None:
        """What another graph of the pool may do meanwhile: results that no tensor
        outside shows are lost.
        """
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for entry in self._entries:
                for place in entry.results:
                    if place.is_floating_point() and not self._gpu.memory.holds(place):
                        place.fill_(math.nan)


def _shown_anew(item):
    return item.detach() if isinstance(item, Tensor) else item
