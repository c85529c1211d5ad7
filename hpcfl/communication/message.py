"""Messages: named tensors that travel between the server and the clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfl.rows import mixing


@dataclass(frozen=True)
class Field:
    """One named tensor of a message.

    Attributes:
        tensor: ``[n, width]``, a row for each client, or ``[width]``, the same for all,
            which travels once to each rank.
        floats: how many floats of traffic it counts as for a client; by default
            ``width``. A number, or [n] where clients differ (FedNH sends prototypes
            only of classes that the client holds); a bit counts 1/32.
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
    """Models of which each client receives some, sent by the server; they travel once
    to each rank.

    Attributes:
        rows: the models ``[q, width]``.
        picks: which of them each client receives, int64 ``[n, m]``; −1 for none.
    """

    rows: Tensor
    picks: Tensor

    def __getitem__(self, clients: Tensor) -> "Pool":
        """The pool of some clients, given by their positions [k]: the same models, and
        their picks.
        """
        return Pool(self.rows, self.picks[clients])

    def logical_floats(self) -> Tensor:
        """The floats of the models that each client receives [n]; the picks themselves
        are not counted.
        """
        return (self.picks >= 0).sum(dim=1) * self.rows.shape[1]


@dataclass(frozen=True)
class Mixture:
    """Models of which each client receives its own weighted sum, sent by the server.

    What arrives are plain rows ``[n, width]``: of client i Σ_j weights_ij·rows_j,
    rounded once. Either these rows travel or the models do, once to each rank, which
    mixes them for its clients: what is fewer bytes. The bits are the same.

    Raises ValueError for other shapes.

    Attributes:
        rows: the models ``[q, width]``, in float64 unless they are exact in less.
        weights: of each client ``[n, q]``, float64.
        dtype: the type of what arrives.
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
        """What arrives, ``[n, width]``, where the models lie."""
        return mixing.combine(self.weights, self.rows, self.dtype)

    def logical_floats(self) -> int:
        """The floats of the one model that a client receives."""
        return self.rows.shape[1]


@dataclass(frozen=True)
class Mean:
    """Rows of clients of which the server needs no more than the weighted mean.

    What arrives is Σ_i weights_i·tensor_i / Σ_i weights_i over the cohort, ``[width]``
    or ``[k, width]``, NaN where all weights are 0. Each rank adds up its own clients'
    rows, so no row of a client travels. The bits are the same for any number of ranks;
    the result is rounded once, to the type of the rows.

    Raises ValueError where shapes, the type or the weights are others.

    Attributes:
        tensor: ``[n, width]``, a row for each client, or ``[n, k, width]`` for k means,
            each of rows of its own.
        weights: how much each client counts, in whole numbers such as its samples:
            ``[n]``, or ``[n, k]`` for k means, which may also be of the same rows ``[n,
            width]``.
        floats: as for a ``Field``; by default as many as the tensor has for a client.
    """

    tensor: Tensor
    weights: Tensor
    floats: float | Tensor | None = None
    shared = False  # as of a Field: clients have rows of their own

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
        """The floats that it counts as for each client, a number or [n]."""
        return self.tensor.shape[1:].numel() if self.floats is None else self.floats


Entry = Field | Mean  # what every entry of a message comes to
Message = Mapping[str, Tensor | Field | Pool | Mixture | Mean]
Inbox = dict[str, Any]  # what arrives: a Tensor, or a Pool where one was sent
PICKS, WEIGHTS = ".picks", ".weights"


def fields(message: Message) -> dict[str, Entry]:
    """A message with every entry as a Field or a Mean, sorted by name.

    A pool becomes two: NAME, its rows one after the other [q·width], and NAME.picks; so
    does a mixture, with NAME.weights. Raises ValueError for a tensor that is neither
    ``[n, width]`` nor ``[width]``.
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
    """The entries of a message of which rows travel, and those that are added up, as
    ``fields`` has them.
    """
    entries = fields(message)
    return (
        {name: entry for name, entry in entries.items() if isinstance(entry, Field)},
        {name: entry for name, entry in entries.items() if isinstance(entry, Mean)},
    )


def only(message: Message, sound: Tensor) -> Message:
    """A message of clients without those of them that are not ``sound``, bool [n].

    What its entries count as in floats is not kept.
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
    """What ``unwrap`` needs to know of a message, JSON-able: which entries became two.

    Of each its number of models and, of a mixture, the type of what arrives; None of a
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
    """The inbox that the arrived tensors make: the reverse of ``fields``, but mixtures
    are mixed.

    Args:
        composed: what the function of this name says of the message, or a copy that
            travelled.
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
    """``float32`` and the like, as NumPy and JSON know it."""
    return str(dtype).removeprefix("torch.")


def select(inbox: Inbox, clients: Tensor) -> Inbox:
    """The part of an inbox for some of its clients, at positions ``clients`` [k]."""
    return {
        name: value
        if isinstance(value, Tensor) and value.dim() == 1
        else value[clients.to(_device(value))]
        for name, value in inbox.items()
    }


def _device(value: Tensor | Pool) -> torch.device:
    return value.device if isinstance(value, Tensor) else value.picks.device
