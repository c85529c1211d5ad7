"""Messages: named tensors that travel between the server and the clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Field:
    """One named tensor of a message.

    tensor: ``[n, width]``, a row for each client, or ``[width]``, the same for all (it travels
    once to each rank).
    floats: how many floats it stands for, for each client; default ``width``. A number, or [n] where clients
        differ (FedNH sends prototypes only of classes that the client holds); a bit counts 1/32.
    """

    tensor: Tensor
    floats: float | Tensor | None = None

    @property
    def shared(self) -> bool:
        return self.tensor.dim() == 1

    def logical_floats(self) -> float | Tensor:
        """Floats for each client, a number or [n]."""
        return self.tensor.shape[-1] if self.floats is None else self.floats


@dataclass(frozen=True)
class Pool:
    """Models of which clients receive several: sent down, they travel once to each rank.

    rows: ``[q, width]``. picks: int64 ``[n, m]``, which of them each client receives; −1 for none.
    """

    rows: Tensor
    picks: Tensor

    def __getitem__(self, clients: Tensor) -> "Pool":
        """The same models, the picks of some clients."""
        return Pool(self.rows, self.picks[clients])

    def logical_floats(self) -> Tensor:
        """Floats for each client [n]: the models it receives; what a pick costs is not counted."""
        return (self.picks >= 0).sum(dim=1) * self.rows.shape[1]


Message = Mapping[str, Tensor | Field | Pool]
Inbox = dict[str, Any]  # what arrives: a Tensor, or a Pool where one was sent


def fields(message: Message) -> dict[str, Field]:
    """A message with every entry as a Field, sorted by name. A pool becomes two: NAME, its rows one after the
    other [q·width], and NAME.picks."""
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


PICKS = ".picks"


def unwrap(arrived: dict[str, Tensor], pooled: Mapping[str, int]) -> Inbox:
    """The inbox of the arrived fields; ``pooled``: the number of models by name of each pool."""
    inbox: Inbox = {name: tensor for name, tensor in arrived.items()
                    if name.removesuffix(PICKS) not in pooled}
    return inbox | {name: Pool(arrived[name].view(count, -1), arrived[name + PICKS])
                    for name, count in pooled.items()}


def select(inbox: Inbox, clients: Tensor) -> Inbox:
    """What arrived for some of the clients, at positions ``clients`` [k]."""
    return {name: value
            if isinstance(value, Tensor) and value.dim() == 1 else value[clients.to(_device(value))]
            for name, value in inbox.items()}


def _device(value: Tensor | Pool) -> torch.device:
    return value.device if isinstance(value, Tensor) else value.picks.device
