"""Messages: named tensors that travel between the server and the clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfl.rows import mixing


@dataclass(frozen=True)
class Field:
    """A named tensor of a message.

    Attributes:
        tensor: ``[n, width]``, a row for each client, or ``[width]``, the same for all,
            which travels once to each rank.
        floats: the counted traffic of a client in floats, by default ``width``. A
            number, or [n] where clients differ (FedNH sends prototypes only of classes
            that the client holds). A bit counts 1/32.
    """

    tensor: Tensor
    floats: float | Tensor | None = None

    @property
    def shared(self) -> bool:
        """Return whether all clients receive the same tensor."""
        return self.tensor.dim() == 1

    def logical_floats(self) -> float | Tensor:
        """Return the counted floats of each client, a number or [n]."""
        return self.tensor.shape[-1] if self.floats is None else self.floats


@dataclass(frozen=True)
class Pool:
    """Models of the server, of which each client receives some; they travel once to
    each rank.

    Attributes:
        rows: the models ``[q, width]``.
        picks: the models of each client, as indices int64 ``[n, m]``; −1 for none.
    """

    rows: Tensor
    picks: Tensor

    def __getitem__(self, clients: Tensor) -> "Pool":
        """Return the pool of the clients at positions [k]: all models, and the clients'
        picks.
        """
        return Pool(self.rows, self.picks[clients])

    def logical_floats(self) -> Tensor:
        """Return the floats of each client's models [n], without the picks."""
        return (self.picks >= 0).sum(dim=1) * self.rows.shape[1]


@dataclass(frozen=True)
class Mixture:
    """Models of the server, of which each client receives its own weighted sum.

    Client i receives the row Σ_j weights_ij·rows_j, rounded once, so that plain rows
    ``[n, width]`` arrive. Either these rows travel, or the models travel once to each
    rank, which mixes them: whichever needs fewer bytes. The bits are the same.

    Raises ValueError for other shapes.

    Attributes:
        rows: the models ``[q, width]``, in float64 unless they are exact in less.
        weights: the weights of each client ``[n, q]``, float64.
        dtype: the type of the rows that arrive.
    """

    rows: Tensor
    weights: Tensor
    dtype: torch.dtype

    def __post_init__(self) -> None:
        rows, weights = list(self.rows.shape), list(self.weights.shape)
        if len(rows) != 2 or len(weights) != 2 or weights[1] != rows[0] or not rows[0]:
            raise ValueError(
                f"a Mixture of models {rows}, weights {weights}; expected [q, width] and [n, q]"
            )

    def mixed(self) -> Tensor:
        """Return the clients' rows ``[n, width]`` on the device of the models."""
        return mixing.combine(self.weights, self.rows, self.dtype)

    def logical_floats(self) -> int:
        """Return the floats of the one model that a client receives."""
        return self.rows.shape[1]


@dataclass(frozen=True)
class Mean:
    """Clients' rows of which the server needs only the weighted mean.

    The server receives Σ_i weights_i·tensor_i / Σ_i weights_i over the cohort,
    ``[width]`` or ``[k, width]``, and NaN where all weights are 0. Each rank adds its
    own clients' rows, so no row of a client travels. The bits are the same for any
    number of ranks; the result is rounded once, to the type of the rows.

    Raises ValueError for other shapes, types or weights.

    Attributes:
        tensor: ``[n, width]``, a row for each client, or ``[n, k, width]`` for k means
            over different rows.
        weights: the weight of each client, a whole number such as its samples: ``[n]``,
            or ``[n, k]`` for k means, also over the same rows ``[n, width]``.
        floats: as for a ``Field``; by default the size of a client's tensor.
        change_of: the name of the received value that the rows are changes of; None if
            they are new values of what was received under the entry's own name. Only
            ``hpcfl.updates`` reads it.
    """

    tensor: Tensor
    weights: Tensor
    floats: float | Tensor | None = None
    change_of: str | None = None
    shared = False  # as for a Field: clients have rows of their own

    def __post_init__(self) -> None:
        rows, weights = self.tensor.shape, self.weights.shape
        if (
            not self.tensor.is_floating_point()
            or len(rows) not in (2, 3)
            or len(weights) not in (1, 2)
            or rows[: len(rows) - 1] != weights[: len(rows) - 1]
        ):
            raise ValueError(
                f"a Mean of {self.tensor.dtype} {list(rows)}, weights {list(weights)}; expected "
                "floating-point [n, width] and [n] or [n, k], or [n, k, width] and [n, k]"
            )
        if (self.weights < 0).any() or (self.weights != self.weights.round()).any():
            raise ValueError(
                "the weights of a Mean must be whole numbers, such as samples; others would not "
                "add up to the same on any number of ranks"
            )

    def logical_floats(self) -> float | Tensor:
        """Return the counted floats of each client, a number or [n]."""
        return self.tensor.shape[1:].numel() if self.floats is None else self.floats


Entry = Field | Mean  # the two forms of an entry as ``fields`` returns it
Message = Mapping[str, Tensor | Field | Pool | Mixture | Mean]
Inbox = dict[str, Any]  # the received values: a Tensor, or a Pool if a Pool was sent
PICKS, WEIGHTS = ".picks", ".weights"


def fields(message: Message) -> dict[str, Entry]:
    """Return a message with every entry as a Field or a Mean, sorted by name.

    A pool becomes two entries: NAME, its rows one after the other [q·width], and
    NAME.picks. A mixture becomes NAME and NAME.weights. Raises ValueError for a tensor
    that is neither ``[n, width]`` nor ``[width]``.
    """
    wrapped: dict[str, Entry] = {}
    for name, value in sorted(message.items()):
        if isinstance(value, Pool | Mixture):
            wrapped[name] = Field(value.rows.flatten(), value.logical_floats())
            wrapped |= (
                {name + PICKS: Field(value.picks, 0)}
                if isinstance(value, Pool)
                else {name + WEIGHTS: Field(value.weights, 0)}
            )
        else:
            wrapped[name] = Field(value) if isinstance(value, Tensor) else value
    for name, entry in wrapped.items():
        if isinstance(entry, Field) and entry.tensor.dim() not in (1, 2):
            raise ValueError(
                f"message field '{name}' has shape {tuple(entry.tensor.shape)}; "
                "it must be [n, width] or [width]"
            )
    return wrapped


def split(message: Message) -> tuple[dict[str, Field], dict[str, Mean]]:
    """Return the entries whose rows travel and those that are added up, as from
    ``fields``.
    """
    entries = fields(message)
    return (
        {name: entry for name, entry in entries.items() if isinstance(entry, Field)},
        {name: entry for name, entry in entries.items() if isinstance(entry, Mean)},
    )


def only(message: Message, sound: Tensor) -> Message:
    """Return a message without the clients that are not ``sound``, bool [n].

    The result drops the counted floats of its entries.
    """
    if sound.all():
        return message
    return {
        name: Field(entry.tensor[sound.to(entry.tensor.device)])
        if isinstance(entry, Field)
        else Mean(
            entry.tensor[sound.to(entry.tensor.device)],
            entry.weights[sound.to(entry.weights.device)],
        )
        for name, entry in fields(message).items()
    }


def composed(message: Message) -> dict[str, list[Any]]:
    """Return the JSON-able description of the entries that ``fields`` splits in two.

    Each has its number of models and, for a mixture, the type of the rows; None for a
    pool.
    """
    return {
        name: [
            len(value.rows),
            None if isinstance(value, Pool) else dtype_name(value.dtype),
        ]
        for name, value in message.items()
        if isinstance(value, Pool | Mixture)
    }


def unwrap(
    arrived: Mapping[str, Tensor], composed: Mapping[str, Sequence[Any]]
) -> Inbox:
    """Return the inbox of the arrived tensors: the reverse of ``fields``, with mixtures
    mixed.

    Args:
        composed: the result of the function of this name, or a copy from another rank.
    """
    inbox: Inbox = dict(arrived)
    for name, (count, dtype) in composed.items():
        rows = arrived[name].view(count, -1)
        inbox[name] = (
            Pool(rows, inbox.pop(name + PICKS))
            if dtype is None
            else Mixture(rows, inbox.pop(name + WEIGHTS), getattr(torch, dtype)).mixed()
        )
    return inbox


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name for NumPy and JSON, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def select(inbox: Inbox, clients: Tensor) -> Inbox:
    """Return the part of an inbox for the clients at positions ``clients`` [k]."""
    return {
        name: value
        if isinstance(value, Tensor) and value.dim() == 1
        else value[clients.to(_device(value))]
        for name, value in inbox.items()
    }


def move(inbox: Inbox, device: torch.device) -> Inbox:
    """Return an inbox on a device."""
    moved: Inbox = {}
    for name, value in inbox.items():
        if isinstance(value, Pool):
            rows = mixing.move_to_device(value.rows, device)
            moved[name] = Pool(rows, value.picks.to(device))
        else:
            moved[name] = mixing.move_to_device(value, device)
    return moved


def _device(value: Tensor | Pool) -> torch.device:
    return value.device if isinstance(value, Tensor) else value.picks.device
