"""A simulated CUDA graph: captured operations run again on the same memory."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu.memory import Pool
from gpu.tensor import each, tensors_in


@dataclass(frozen=True)
class Entry:
    """One operation: its arguments and, on the CPU, the storage of its results."""

    operation: Any
    args: Any
    kwargs: Any
    results: list[Tensor]


class Tape:
    """Replacement of ``torch.cuda.CUDAGraph``."""

    def __init__(self, gpu):
        self._gpu = gpu
        self._entries: list[Entry] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self.memory = Pool()

    def pool(self) -> Pool:
        return self.memory

    def note(self, operation, args, kwargs, result):
        """Add an operation. Its tensors are wrapped again, because an operation such as
        ``unsqueeze_`` may change the shape of the existing ones later.
        """
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            args, kwargs, results = each(_detach, (args, kwargs, tensors_in(result)))
        self._entries.append(Entry(operation, args, kwargs, results))

    def keep(self, tensors: list[Tensor]):
        """Save tensors that may be written during the capture, since a capture on a GPU
        executes nothing.
        """
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            self._before += [(tensor.detach(), tensor.clone()) for tensor in tensors]

    def undo(self):
        """Restore all saved tensors, in reverse order."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for tensor, values in reversed(self._before):
                tensor.copy_(values)
        self._before.clear()

    def replay(self):
        gpu = self._gpu
        gpu.ledger.replays += 1
        if gpu.replayed is not None:
            gpu.replayed.spoil()
        gpu.replayed = self
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for entry in self._entries:
                found = tensors_in(entry.operation(*entry.args, **entry.kwargs))
                for place, value in zip(entry.results, found, strict=True):
                    if place.data_ptr() != value.data_ptr():
                        place.copy_(value)

    def spoil(self):
        """Overwrite results that no outside tensor uses, as another graph of the pool
        may do.
        """
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for entry in self._entries:
                for place in entry.results:
                    if place.is_floating_point() and not self._gpu.memory.holds(place):
                        place.fill_(math.nan)


def _detach(item):
    """Return a tensor without its history, or another object as it is."""
    return item.detach() if isinstance(item, Tensor) else item
