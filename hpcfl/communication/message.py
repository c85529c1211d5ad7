"""Messages: named tensors that travel between the server and the clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Field:
    """One named tensor of a message.

    tensor: ``[n, width]``, a row for each client, or ``[width]``, the same for all, which travels once to
        each rank.
    floats: how many floats of traffic it counts as for a client; by default ``width``. A number, or [n] where
        clients differ (FedNH sends prototypes only of classes that the client holds); a bit counts 1/32.
    """

    tensor: Tensor
    floats: float | Tensor | None = None

    @property
    def shared(self) -> bool:
        """Whether it is the same for all clients."""
        return self.tensor.dim() == 1

    def logical_floats(self) -> float | Tensor:
        """The floats that it counts as for each client, a number or [n]."""
        return self.tensor.shape[-1] if self.floats is None else self.floats


@dataclass(frozen=True)
class Pool:
    """Models of which each client receives some, sent by the server; they travel once to each rank.

    rows: the models ``[q, width]``.
    picks: which of them each client receives, int64 ``[n, m]``; −1 for none.
    """

    rows: Tensor
    picks: Tensor

    def __getitem__(self, clients: Tensor) -> "Pool":
        """The pool of some clients, given by their positions [k]: the same models, and their picks."""
        return Pool(self.rows, self.picks[clients])

    def logical_floats(self) -> Tensor:
        """The floats of the models that each client receives [n]; the picks themselves are not counted."""
        return (self.picks >= 0).sum(dim=1) * self.rows.shape[1]


Message = Mapping[str, Tensor | Field | Pool]
Inbox = dict[str, Any]  # what arrives: a Tensor, or a Pool where one was sent
PICKS = ".picks"


def fields(message: Message) -> dict[str, Field]:
    """A message with every entry as a Field, sorted by name.

    A pool becomes two: NAME, its rows one after the other [q·width], and NAME.picks. Raises ValueError for a
    tensor that is neither ``[n, width]`` nor ``[width]``.
    """
    wrapped: dict[str, Field] = {}
    for name, value in sorted(message.items()):
        if isinstance(value, Pool):
            wrapped[name] = Field(value.rows.flatten(), value.logical_floats())
            wrapped[f"{name}{PICKS}"] = Field(value.picks, 0)
        else:
            wrapped[name] = value if isinstance(value, Field) else Field(value)
    for name, entry in wrapped.items():
        if entry.tensor.dim() not in (1, 2):
            raise ValueError(f"message field '{name}' has shape {tuple(entry.tensor.shape)}; "
                             "it must be [n, width] or [width]")
    return wrapped


def unwrap(arrived: dict[str, Tensor], pooled: Mapping[str, int]) -> Inbox:
    """The inbox that the arrived tensors make: the reverse of ``fields``.

    pooled: by name of each pool, how many models it has.
    """
    inbox: Inbox = {name: tensor for name, tensor in arrived.items()
                    if name.removesuffix(PICKS) not in pooled}
    return inbox | {name: Pool(arrived[name].view(count, -1), arrived[name + PICKS])
                    for name, count in pooled.items()}


def select(inbox: Inbox, clients: Tensor) -> Inbox:
    """The part of an inbox for some of its clients, at positions ``clients`` [k]."""
    return {name: value
            if isinstance(value, Tensor) and value.dim() == 1 else value[clients.to(_device(value))]
            for name, value in inbox.items()}


def _device(value: Tensor | Pool) -> torch.device:
    return value.device if isinstance(value, Tensor) else value.picks.device
