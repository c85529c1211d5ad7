"""The transforms of a run, which are applied to updates one after the other."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hpcfl.updates.base import Context, Transform
from hpcfl.updates.entries import FLOAT_BITS
from hpcfl.updates.memory import memory_name, open_memory


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which clients apply them.

    The rows that a transform remembers are named by its place in the chain.
    """

    transforms: Sequence[Transform]

    def has_effect(self, width: int) -> bool:
        """Return whether an update of P = ``width`` numbers can change at all."""
        return any(transform.has_effect(width) for transform in self.transforms)

    def list_memory(self) -> list[str]:
        """Return the names in a client's state of the rows that it remembers."""
        names = []
        for place, transform in enumerate(self.transforms):
            for name in transform.list_memory():
                names.append(memory_name(place, name))
        return names

    def list_server_memory(self) -> list[str]:
        """Return the names in the server's state of the rows that it remembers."""
        names = []
        for place, transform in enumerate(self.transforms):
            for name in transform.list_server_memory():
                names.append(memory_name(place, name))
        return names

    def apply(
        self,
        state: MutableMapping[str, Tensor],
        updates: Tensor,
        bits: Tensor,
        context: Context,
        columns: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the transformed updates [n, P] of clients, and their bits [n].

        Args:
            state: The clients' private state, which transforms may change.
            updates: Those that clients made.
            bits: The bits of each update before.
            context: Of the clients.
            columns: The places [P] of the updates' numbers in remembered rows.
        """
        for place, transform in enumerate(self.transforms):
            names = transform.list_memory()
            with open_memory(state, place, names, columns) as memory:
                updates = transform.apply(updates, replace(context, memory=memory))
            bits = transform.count_bits(updates, bits)
        return updates, bits

    def apply_without_memory(self, updates: Tensor, context: Context) -> Tensor:
        """Return the transformed updates [n, P] of transforms that remember nothing."""
        for transform in self.transforms:
            updates = transform.apply(updates, context)
        return updates

    def finish(
        self,
        server: MutableMapping[str, Tensor],
        result: Tensor,
        context: Context,
        columns: Tensor,
    ) -> Tensor:
        """Return the server's update [P]: the rule's ``result`` after ``finish`` of all
        transforms, the last one first.

        Other arguments as for ``apply``; ``server`` is the server's state.
        """
        for place in reversed(range(len(self.transforms))):
            transform = self.transforms[place]
            names = transform.list_server_memory()
            with open_memory(server, place, names, columns) as memory:
                result = transform.finish(result, replace(context, memory=memory))
        return result

    def count_bits(self, width: int) -> Tensor:
        """Return the bits of one transformed update of P = ``width`` numbers, float64
        [1].
        """
        row = torch.ones(1, width)
        bits = torch.tensor([float(FLOAT_BITS * width)]).double()
        for transform in self.transforms:
            bits = transform.count_bits(row, bits)
        return bits
