"""The private state of the clients of one rank."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hpcfl.storage import digest


@dataclass(frozen=True)
class Row:
    """State of one client: CPU tensors that nobody changes; a client that changes gets a new row."""

    tensors: Mapping[str, Tensor]
    written: bool = True  # False: the client never wrote and shares the template's row

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the state, computed once."""
        return digest.of_tensors(self.tensors)


class ClientStore:
    """Private state by client id. Clients that never wrote all share one row, the template."""

    def __init__(self, ids: Iterable[int], template: Mapping[str, Tensor]) -> None:
        """``template``: the state of ONE client that has never written, name → tensor [*shape] on any device."""
        row = Row({name: _private(tensor.detach().cpu()) for name, tensor in template.items()}, written=False)
        self.template = row.tensors
        self._rows = dict.fromkeys(sorted(ids), row)

    @property
    def ids(self) -> list[int]:
        """The clients of this rank, ascending."""
        return list(self._rows)

    def get(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Copies of the state of these clients, name → CPU tensor [n, *shape]. Raises ValueError."""
        self._check_ids(ids)
        return {name: torch.stack([self._rows[client].tensors[name] for client in ids])
                if len(ids) else empty.new_empty((0, *empty.shape)) for name, empty in self.template.items()}

    def put(self, ids: Sequence[int], state: Mapping[str, Tensor]) -> None:
        """Replace the whole state of these clients; ``state`` as ``get`` gives it, on any device. Raises ValueError."""
        self._check_ids(ids)
        self._check_state(len(ids), state)
        if not self.template:
            return  # nothing to keep, so nothing to store either
        local = {name: tensor.detach().cpu() for name, tensor in state.items()}
        for position, client in enumerate(ids):
            self._rows[client] = Row({name: _private(tensor[position]) for name, tensor in local.items()})

    def snapshot(self) -> dict[int, Row]:
        """The state of all clients as of now, by ascending id; later puts do not show in it. Costs no tensor copy."""
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
