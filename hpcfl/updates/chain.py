"""Sequence of the transforms of a run."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hpcfl.updates.base import Context, Transform
from hpcfl.updates.entries import FLOAT_BITS
from hpcfl.updates.memory import name_memory, open_memory


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which clients apply them.

    The names of a transform's rows in the state contain its position in the chain.
    """

    transforms: Sequence[Transform]

    def has_effect(self, width: int) -> bool:
        """Return whether any transform can change an update of P = ``width`` numbers."""
        return any(transform.has_effect(width) for transform in self.transforms)

    def list_memory(self) -> list[str]:
        """Return the names of the transforms' rows in a client's state."""
        names = []
        for place, transform in enumerate(self.transforms):
            for name in transform.list_memory():
                names.append(name_memory(place, name))
        return names

    def list_server_memory(self) -> list[str]:
        """Return the names of the transforms' rows in the server's state."""
        names = []
        for place, transform in enumerate(self.transforms):
            for name in transform.list_server_memory():
                names.append(name_memory(place, name))
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
            updates: The updates before the transforms [n, P].
            bits: The bits of each update before the transforms [n].
            context: Facts about the rows.
            columns: The columns [P] of the update in the rows of the state.
        """
        for place, transform in enumerate(self.transforms):
            names = transform.list_memory()
            with open_memory(state, place, names, columns) as memory:
                changed = transform.apply(updates, replace(context, memory=memory))
            bits = transform.count_bits(changed, bits)
            updates = changed.to(updates.dtype)
        return updates, bits

    def apply_to_forged(self, updates: Tensor, context: Context) -> Tensor:
        """Return the updates [m, P] that attackers can send; all transforms must be
        stateless.
        """
        for transform in self.transforms:
            sent = transform.apply_to_forged(updates, context)
            updates = sent.to(updates.dtype)
        return updates

    def finish(
        self,
        server: MutableMapping[str, Tensor],
        result: Tensor,
        context: Context,
        columns: Tensor,
    ) -> Tensor:
        """Return the server's update [P]: the rule's result after ``finish`` of all
        transforms, from the last to the first.

        Args:
            server: The server's state, which transforms may change.
            result: The result of the rule [P].
            context: Facts about the cohort's rows.
            columns: The columns [P] of the update in the rows of the state.
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
