"""Where the tensors of one training after the other lie on a GPU.

A graph reads and writes the memory that it was captured with. Models, the optimiser's
state and what else stays for a whole training therefore have fixed places there, their
homes, so that no step has to copy them.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from hpcfl.fleet.losses import Tensors


class Homes:
    """Matrices, of which the first rows are the lanes of the training that goes on.

    outgrown: called before a home moves because more lanes settle than ever before, for
    graphs that know it.
    """

    def __init__(self, outgrown: Callable[[], None]):
        self._outgrown = outgrown
        self._homes: dict[Hashable, Tensor] = {}
        self._by_place: dict[Hashable, Tensor] = {}

    def settle(self, kind: str, tensors: Tensors) -> Tensors:
        """Tensors ``[L, …]`` by name, moved to the homes of their kind; what lay there
        is gone.

        Those on a CPU, and empty ones, stay where they are.
        """
        return {
            name: self._settled(kind, name, tensor)
            if tensor.is_cuda and tensor.numel()
            else tensor
            for name, tensor in tensors.items()
        }

    def of(self, tensor: Tensor) -> Tensor | None:
        """The home of which ``tensor`` [a, …] is the first rows; None if it is not the
        first rows of one.
        """
        return self._by_place.get(_place(tensor)) if tensor.is_contiguous() else None

    def clear(self) -> None:
        """No tensor has a home any more."""
        self._homes.clear()
        self._by_place.clear()

    def _settled(self, kind: str, name: str, tensor: Tensor) -> Tensor:
        key = kind, name, tensor.shape[1:], tensor.dtype
        home = self._homes.get(key)
        if home is None or len(home) < len(tensor):
            if home is not None:
                self._outgrown()
                del self._by_place[_place(home)]
            home = torch.empty_like(tensor, memory_format=torch.contiguous_format)
            self._homes[key] = self._by_place[_place(home)] = home
        return home[: len(tensor)].copy_(tensor)


def _place(tensor: Tensor) -> Hashable:
    return tensor.data_ptr(), tensor.shape[1:], tensor.dtype
