"""Cache of the private state of one rank's clients: GPU, then memory, then a file in
$TMPDIR.

The state that was put last stays in the fastest place.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
import torch
from torch import Tensor

from hpcfl.rows import pinned
from hpcfl.storage import digest
from hpcfl.storage.overflow import Overflow, Slot

CPU = torch.device("cpu")


class Row:
    """The state of one client, whose tensors never change: a new state makes a new row.

    written: False for the template's row, which all clients without own state share.
    """

    def __init__(self, tensors: Mapping[str, Tensor], written: bool = True) -> None:
        self.written = written
        self.size = sum(tensor.nbytes for tensor in tensors.values())  # bytes
        self._memory: Mapping[str, Tensor] | None = tensors
        self._slot: Slot | None = None

    @property
    def on_gpu(self) -> bool:
        return self._memory is not None and any(
            tensor.is_cuda for tensor in self._memory.values()
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the state on the CPU, read from the file if it was moved there."""
        return {
            name: pinned.on_host(tensor) for name, tensor in self.as_it_lies.items()
        }

    @property
    def as_it_lies(self) -> Mapping[str, Tensor]:
        """Return the state on its current device, read from the file if it was moved
        there.
        """
        memory, slot = (
            self._memory,
            self._slot,
        )  # in this order: another thread may be moving it
        if memory is not None:
            return memory
        assert slot is not None
        return slot.read()

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the state, computed once."""
        return digest.of_tensors(self.tensors)

    def leave_gpu(self) -> None:
        """Move the state to the CPU's memory."""
        self._memory = {
            name: pinned.on_host(tensor).clone()
            for name, tensor in self.as_it_lies.items()
        }

    def move(self, overflow: Overflow) -> None:
        """Move the state out of memory into the file. Raises RunFailure."""
        self._slot = overflow.write(self.tensors)
        self._memory = None

    def read_ahead(self) -> None:
        """Ask the system to load the state into its cache."""
        if self._slot is not None:
            self._slot.read_ahead()


@dataclass
class Tier:
    """Rows in one kind of memory, at most ``most`` bytes; ``down`` receives the oldest
    rows.
    """

    most: float
    down: Callable[[int, Row], None]
    held: int = 0
    rows: OrderedDict[int, Row] = field(
        default_factory=OrderedDict
    )  # the newest at the end

    def put(self, client: int, row: Row) -> None:
        self.rows[client] = row
        self.held += row.size
        while self.held > self.most:
            oldest, row = self.rows.popitem(last=False)
            self.held -= row.size
            self.down(oldest, row)

    def drop(self, client: int) -> None:
        """Remove the client's outdated row, if it is here."""
        if client in self.rows:
            self.held -= self.rows.pop(client).size


@dataclass(frozen=True)
class Snapshot(Mapping[int, Row]):
    """The rows of one rank's clients at one moment, by ascending id.

    Attributes:
        ids: The clients, int64 [n], ascending.
        written: The rows that were put, by id.
        template: The row of all other clients.
    """

    ids: np.ndarray
    written: Mapping[int, Row]
    template: Row

    @property
    def digests(self) -> digest.OfClients:
        """Return the digests of all rows; each is computed once."""
        written = {client: row.digest for client, row in self.written.items()}
        return digest.OfClients(self.ids, self.template.digest, written)

    def __getitem__(self, client: int) -> Row:
        if not _among(np.array([client]), self.ids).all():
            raise KeyError(client)
        return self.written.get(client, self.template)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids.tolist())

    def __len__(self) -> int:
        return len(self.ids)


class ClientStore:
    """The private state of clients by id.

    Clients whose state was never put share one row, the template.
    """

    def __init__(
        self,
        ids: Iterable[int],
        template: Mapping[str, Tensor],
        memory: float = inf,
        gpu_memory: float = 0,
    ) -> None:
        """Make a store in which each of ``ids`` has the state ``template``.

        Args:
            template: the state of ONE client, name → tensor [*shape] on any device.
            memory: the most bytes of rows in memory; older rows move to a file in
                $TMPDIR.
            gpu_memory: the most bytes of rows on a GPU; older rows move to memory.
        """
        row = Row(
            {
                name: _private(tensor.detach().cpu())
                for name, tensor in template.items()
            },
            written=False,
        )
        self._template_row = row
        self.template = row.tensors
        self._ids = np.sort(np.fromiter(ids, np.int64))
        self._written: dict[int, Row] = {}
        self._overflow = overflow = Overflow(self.template)
        host = Tier(memory, lambda client, row: row.move(overflow))

        def leave_gpu(client: int, row: Row) -> None:
            row.leave_gpu()
            host.put(client, row)

        # No tier refers to the store: a reference cycle would keep all state alive
        # after the run, until the next garbage collection.
        self._host, self._gpu = host, Tier(gpu_memory, leave_gpu)

    @property
    def ids(self) -> list[int]:
        """Return the clients of this rank, ascending."""
        ids: list[int] = self._ids.tolist()
        return ids

    def hosts(self, ids: np.ndarray) -> np.ndarray:
        """Return whether each of the ``ids`` [n] is on this rank, bool [n]."""
        return _among(ids, self._ids)

    def get(self, ids: Sequence[int], device: torch.device = CPU) -> dict[str, Tensor]:
        """Return copies of the state of n clients, name → tensor [n, *shape] on
        ``device``.

        Raises ValueError for clients of other ranks, RunFailure if the file cannot be
        read.
        """
        self._check_ids(ids)
        if not ids:
            return {
                name: empty.new_empty((0, *empty.shape), device=device)
                for name, empty in self.template.items()
            }
        rows = [
            self._written.get(client, self._template_row).as_it_lies for client in ids
        ]
        return {
            name: pinned.stacked([row[name] for row in rows], device)
            for name in self.template
        }

    def put(self, ids: Sequence[int], state: Mapping[str, Tensor]) -> None:
        """Replace the whole state of n clients by ``state``, as from ``get``, on any
        device.

        Raises ValueError for clients of other ranks and for a state unlike the
        template,
        RunFailure if the file system is full.
        """
        self._check_ids(ids)
        self.check_state(len(ids), state)
        if not self.template:
            return  # an empty state needs no rows
        stays = sum(tensor.nbytes for tensor in state.values()) <= self._gpu.most
        state = {
            name: tensor.detach() if stays else pinned.on_host(tensor.detach())
            for name, tensor in state.items()
        }
        for position, client in enumerate(ids):
            row = self._written[client] = Row(
                {name: _private(tensor[position]) for name, tensor in state.items()}
            )
            self._gpu.drop(client)
            self._host.drop(client)
            (self._gpu if row.on_gpu else self._host).put(client, row)

    def forget(self, ids: Iterable[int]) -> None:
        """Reset clients to the template's state."""
        for client in ids:
            self._written.pop(client, None)
            self._gpu.drop(client)
            self._host.drop(client)

    def like(self, template: Mapping[str, Tensor]) -> "ClientStore":
        """Return a new store for other state of the same clients, with the same limits."""
        return ClientStore(self._ids, template, self._host.most, self._gpu.most)

    def read_ahead(self, ids: Iterable[int]) -> None:
        """Ask the system to load the state of those ``ids`` that are on this rank."""
        for client in ids:
            if client in self._written:
                self._written[client].read_ahead()

    def snapshot(self) -> Snapshot:
        """Return the current rows of all clients; later puts do not change them.

        No tensor is copied.
        """
        return Snapshot(self._ids, dict(self._written), self._template_row)

    def _check_ids(self, ids: Sequence[int]) -> None:
        asked = np.asarray(ids, np.int64)
        others = asked[~self.hosts(asked)].tolist()
        if others:
            raise ValueError(f"clients {others[:5]} are not of this rank")

    def check_state(self, count: int, state: Mapping[str, Tensor]) -> None:
        """Raise ValueError for a state of so many clients that is unlike the template."""
        if state.keys() != self.template.keys():
            raise ValueError(
                f"fleet.state has {sorted(state)}; expected {sorted(self.template)}"
            )
        for name, tensor in state.items():
            expected = (self.template[name].dtype, (count, *self.template[name].shape))
            if (tensor.dtype, tuple(tensor.shape)) != expected:
                raise ValueError(
                    f"fleet.state['{name}'] is {tensor.dtype} of shape {list(tensor.shape)}; "
                    f"a row for each client is {expected[0]} of shape {list(expected[1])}"
                )


def _among(ids: np.ndarray, hosted: np.ndarray) -> np.ndarray:
    """Return whether each of the ``ids`` [n] is in the ascending ``hosted``, bool [n]."""
    places = np.searchsorted(hosted, ids)
    among = places < len(hosted)
    among[among] = hosted[places[among]] == ids[among]
    return among


def _private(tensor: Tensor) -> Tensor:
    """Return a contiguous copy with its own storage.

    A view would keep the rows of all its neighbours alive.
    """
    return tensor.clone(memory_format=torch.contiguous_format)
