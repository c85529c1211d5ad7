"""A CUDA graph: what was captured runs again, on the same memory."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from gpu.memory import Pool


@dataclass(frozen=True)
class Entry:
    """One operation: what it was given and, on the CPU, the places of its results."""

    operation: Any
    args: Any
    kwargs: Any
    results: list[Any]
    kernels: int


class Tape:
    """Stands for ``torch.cuda.CUDAGraph``."""

    def __init__(self, gpu):
        self._gpu = gpu
        self._entries: list[Entry] = []
        self.memory = Pool()

    def pool(self) -> Pool:
        return self.memory

    def note(self, operation, args, kwargs, result, kernels: int) -> None:
        """One more operation. Its tensors are shown anew: an operation such as ``unsqueeze_`` may still give
        those at hand another shape."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            args, kwargs, results = tree_map(_shown_anew, (args, kwargs, tree_leaves(result)))
        self._entries.append(Entry(operation, args, kwargs, results, kernels))

    def replay(self) -> None:
        gpu = self._gpu
        gpu.ledger.replays += 1
        gpu.ledger.kernels_in_graphs += sum(entry.kernels for entry in self._entries)
        if gpu.replayed is not None:
            gpu.replayed.spoil()
        gpu.replayed = self
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for entry in self._entries:
                found = tree_leaves(entry.operation(*entry.args, **entry.kwargs))
                for place, value in zip(entry.results, found, strict=True):
                    if isinstance(place, Tensor) and place.data_ptr() != value.data_ptr():
                        place.copy_(value)

    def spoil(self) -> None:
        """What another graph of the pool may do meanwhile: results that no tensor outside shows are lost."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for entry in self._entries:
                for place in entry.results:
                    if (isinstance(place, Tensor) and place.is_floating_point()
                            and not self._gpu.memory.holds(place)):
                        place.fill_(math.nan)


def _shown_anew(item):
    return item.detach() if isinstance(item, Tensor) else item
