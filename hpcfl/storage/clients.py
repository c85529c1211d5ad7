"""The private state of one rank's clients: what was put last in memory, the rest in a file in $TMPDIR."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from hpcfl.storage import digest
from hpcfl.storage.overflow import Overflow, Slot


class Row:
    """State of one client: CPU tensors that nobody changes; a client whose state changes gets a new row.

    written: False for the template's row, which clients share whose state was never put.
    """

    def __init__(self, tensors: Mapping[str, Tensor], written: bool = True) -> None:
        self.written = written
        self.size = sum(tensor.nbytes for tensor in tensors.values())  # bytes
        self._memory: Mapping[str, Tensor] | None = tensors
        self._slot: Slot | None = None

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The state; read from the file if it was moved there."""
        memory, slot = self._memory, self._slot  # in this order: another thread may be moving it
        if memory is not None:
            return memory
        assert slot is not None
        return slot.read()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the state, computed once."""
        return digest.of_tensors(self.tensors)

    def move(self, overflow: Overflow) -> None:
        """Move the state out of memory into the file. Raises RunFailure."""
        self._slot = overflow.write(self.tensors)
        self._memory = None

    def read_ahead(self) -> None:
        """Ask the system to have the state in its cache soon."""
        if self._slot is not None:
            self._slot.read_ahead()


class ClientStore:
    """Private state by client id. Clients whose state was never put share one row, the template."""

    def __init__(self, ids: Iterable[int], template: Mapping[str, Tensor], memory: float = inf) -> None:
        """A store in which each of ``ids`` has the state ``template``.

        template: the state of ONE client, name → tensor [*shape] on any device.
        memory: the most bytes of rows in memory; those that were put longest ago go into a file in $TMPDIR.
        """
        row = Row({name: _private(tensor.detach().cpu()) for name, tensor in template.items()}, written=False)
        self.template = row.tensors
        self._rows = dict.fromkeys(sorted(ids), row)
        self._memory, self._held = memory, 0  # bytes of rows in memory: at most, and now
        self._recent: OrderedDict[int, Row] = OrderedDict()  # rows in memory, the one put last at the end
        self._overflow = Overflow(self.template)

    @property
    def ids(self) -> list[int]:
        """The clients of this rank, ascending."""
        return list(self._rows)

    def get(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Copies of the state of n clients, name → CPU tensor [n, *shape].

        Raises ValueError for clients of other ranks, RunFailure where the file cannot be read.
        """
        self._check_ids(ids)
        state = {name: like.new_empty((len(ids), *like.shape)) for name, like in self.template.items()}
        for position, client in enumerate(ids):
            for name, tensor in self._rows[client].tensors.items():
                state[name][position] = tensor
        return state

    def put(self, ids: Sequence[int], state: Mapping[str, Tensor]) -> None:
        """Replace the whole state of n clients; ``state`` as ``get`` returns it, on any device.

        Raises ValueError for clients of other ranks and for state that is not like the template, RunFailure
        where the file system is full.
        """
        self._check_ids(ids)
        self._check_state(len(ids), state)
        if not self.template:
            return  # nothing to keep, so nothing to store either
        local = {name: tensor.detach().cpu() for name, tensor in state.items()}
        for position, client in enumerate(ids):
            row = self._rows[client] = Row({name: _private(tensor[position])
                                            for name, tensor in local.items()})
            if client in self._recent:
                self._held -= self._recent.pop(client).size
            self._recent[client] = row
            self._held += row.size
            while self._held > self._memory:
                _, oldest = self._recent.popitem(last=False)
                self._held -= oldest.size
                oldest.move(self._overflow)

    def read_ahead(self, ids: Iterable[int]) -> None:
        """Say that the state of those of ``ids`` that live on this rank will be asked for soon."""
        for client in ids:
            if client in self._rows:
                self._rows[client].read_ahead()

    def snapshot(self) -> dict[int, Row]:
        """The rows of all clients as of now, by ascending id: later puts do not show, no tensor is copied."""
        return dict(self._rows)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if foreign := [client for client in ids if client not in self._rows]:
            raise ValueError(f"clients {foreign[:5]} are not of this rank")

    def _check_state(self, count: int, state: Mapping[str, Tensor]) -> None:
        if state.keys() != self.template.keys():
            raise ValueError(f"client state has names {sorted(state)} instead of {sorted(self.template)}")
        for name, tensor in state.items():
            expected = (self.template[name].dtype, (count, *self.template[name].shape))
            if (tensor.dtype, tuple(tensor.shape)) != expected:
                raise ValueError(f"client state '{name}' is {tensor.dtype} {tuple(tensor.shape)} instead of "
                                 f"{expected[0]} {expected[1]}")


def _private(tensor: Tensor) -> Tensor:
    """A contiguous copy with its own storage: a view would keep the rows of all its neighbours alive."""
    return tensor.clone(memory_format=torch.contiguous_format)
