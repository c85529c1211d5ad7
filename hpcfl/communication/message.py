"""Messages: named tensors that the server and the clients send to each other.

Entries of a message are tensors, ``Field``, ``Pool``, ``Mixture`` or ``Mean``.
``wrap_entries`` reduces them to the two forms that are sent, and ``unwrap`` restores them on
receipt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfl.rows import mixing
from hpcfl.rows.declared import STORED_FLOATS, describe_form


@dataclass(frozen=True)
class Field:
    """A named tensor of a message.

    Attributes:
        tensor: ``[n, width]``, a row for each client, or ``[width]``, the same for all
            clients. A shared tensor is sent once to each rank.
        floats: number of floats counted as a client's traffic, by default ``width``. A
            number, or [n] if clients differ (FedNH sends a client only the prototypes
            of its classes). A bit counts 1/32.
    """

    tensor: Tensor
    floats: float | Tensor | None = None

    @property
    def shared(self) -> bool:
        """Return whether all clients receive the same tensor."""
        return self.tensor.dim() == 1

    def count_floats(self) -> float | Tensor:
        """Return the number of floats counted for each client, a number or [n]."""
        return self.tensor.shape[-1] if self.floats is None else self.floats


@dataclass(frozen=True)
class Pool:
    """Models of the server, of which each client receives some.

    The models are sent once to each rank. A large pool stays on the CPU, also if the
    clients are on a GPU; ``take`` copies some of its models to the clients.

    Attributes:
        rows: models ``[q, width]``.
        picks: indices of the models of each client, int64 ``[n, m]``; −1 for none.
    """

    rows: Tensor
    picks: Tensor

    def __getitem__(self, clients: Tensor) -> "Pool":
        """Return the pool for some clients: all models, and the clients' picks.

        Args:
            clients: positions of the clients [k].
        """
        return Pool(self.rows, self.picks[clients])

    @property
    def device(self) -> torch.device:
        """The device of the clients."""
        return self.picks.device

    def take(self, positions: Tensor) -> Tensor:
        """Return copies of the models at ``positions`` [k], on the clients' device.

        Raises:
            IndexError: There is no such model, as for a pick of −1.
        """
        models = self.rows.index_select(0, positions.to(self.rows.device))
        return mixing.move_to_device(models, self.device)

    def count_floats(self) -> Tensor:
        """Return the number of floats of each client's models [n], without the picks."""
        return (self.picks >= 0).sum(dim=1) * self.rows.shape[1]


@dataclass(frozen=True)
class Mixture:
    """Models of the server, of which each client receives a weighted sum.

    Client i receives the row Σ_j weights_ij·rows_j, rounded once. Clients receive plain
    rows ``[n, width]``. Either these rows are sent, or the models are sent once to each
    rank, which mixes them; the smaller number of bytes decides. The bits are the same.

    Attributes:
        rows: models ``[q, width]``, in float64 unless a smaller type holds them
            exactly.
        weights: weights of each client ``[n, q]``, float64.
        dtype: type of the received rows.

    Raises:
        ValueError: The shapes do not fit.
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

    def mix(self) -> Tensor:
        """Return the clients' rows ``[n, width]`` on the device of the models."""
        return mixing.combine(self.weights, self.rows, self.dtype)

    def count_floats(self) -> int:
        """Return the number of floats of the one model that a client receives."""
        return self.rows.shape[1]


@dataclass(frozen=True)
class Mean:
    """Rows of clients, of which the server needs only the weighted mean.

    The server receives Σ_i weights_i·tensor_i / Σ_i weights_i over the cohort,
    ``[width]`` or ``[k, width]``, and NaN if all weights are 0. Each rank adds the rows
    of its clients, so no client's row is sent. The bits are the same for any number of
    ranks. The result is rounded once, to the type of the rows.

    Attributes:
        tensor: ``[n, width]``, a row for each client, or ``[n, k, width]`` for k means
            over different rows.
        weights: weight of each client, a whole number such as its number of samples:
            ``[n]``, or ``[n, k]`` for k means, which may share the rows ``[n, width]``.
        floats: as for a ``Field``; by default the size of a client's tensor.
        change_of: name of the received value, if the rows are changes relative to it.
            None if the rows are new values of the entry received under the same name.
            Only ``hpcfl.updates`` reads it.

    Raises:
        ValueError: Shapes, types or weights are invalid.
    """

    tensor: Tensor
    weights: Tensor
    floats: float | Tensor | None = None
    change_of: str | None = None
    shared = False  # as for a Field: each client has a row

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
        if (self.weights < 0).any() or (self.weights % 1 != 0).any():
            raise ValueError(
                "the weights of a Mean must be whole numbers, such as numbers of samples; other "
                "sums depend on the number of ranks"
            )

    def count_floats(self) -> float | Tensor:
        """Return the counted floats of each client, a number or [n]."""
        return self.tensor.shape[1:].numel() if self.floats is None else self.floats


Entry = Field | Mean  # the two forms of an entry that ``wrap_entries`` returns
Message = Mapping[str, Tensor | Field | Pool | Mixture | Mean]
Inbox = dict[str, Any]  # received values: a Tensor, or a Pool if a Pool was sent
CHOICE = ".choice"  # suffix of the picks of a pool and of the weights of a mixture


def wrap_entries(message: Message) -> dict[str, Entry]:
    """Return a message with every entry as a Field or a Mean, sorted by name.

    A pool or mixture becomes two entries: NAME, its concatenated rows [q·width], and
    NAME.choice, the picks or weights.

    Raises:
        ValueError: An entry cannot be sent, or has the second name of a pool or
            mixture.
    """
    wrapped: dict[str, Entry] = {}
    for name, value in sorted(message.items()):
        if isinstance(value, Pool | Mixture):
            if name + CHOICE in message:
                raise ValueError(
                    f"the {type(value).__name__} '{name}' is sent as '{name}' and "
                    f"'{name}{CHOICE}'; rename the entry '{name}{CHOICE}'"
                )
            wrapped[name] = Field(value.rows.flatten(), value.count_floats())
            choice = value.picks if isinstance(value, Pool) else value.weights
            wrapped[name + CHOICE] = Field(choice, 0)
        else:
            wrapped[name] = Field(value) if isinstance(value, Tensor) else value
    for name, entry in wrapped.items():
        _refuse_unsendable(name, entry)
    return wrapped


def _refuse_unsendable(name: str, entry: Any) -> None:
    """Raise ValueError if an entry is no tensor, or has a shape or type that is not sent."""
    if isinstance(entry, Mean):
        return
    if not isinstance(entry, Field):
        raise ValueError(f"'{name}' is {describe_form(entry)}; expected a tensor")
    tensor = entry.tensor
    form = f"'{name}' is {describe_form(tensor)}"
    if tensor.dim() not in (1, 2):
        raise ValueError(f"{form}; expected shape [n, width] or [width]")
    if tensor.is_floating_point() and tensor.dtype not in STORED_FLOATS:
        raise ValueError(f"{form}; expected float32 or float16")


def split(message: Message) -> tuple[dict[str, Field], dict[str, Mean]]:
    """Split the entries from ``wrap_entries`` into those sent as rows and those sent as sums."""
    entries = wrap_entries(message)
    return (
        {name: entry for name, entry in entries.items() if isinstance(entry, Field)},
        {name: entry for name, entry in entries.items() if isinstance(entry, Mean)},
    )


def select_sound(message: Message, sound: Tensor) -> Message:
    """Return a message without some clients.

    The result has no counted floats.

    Args:
        message: message of n clients.
        sound: mask of the clients to keep, bool [n].
    """
    if sound.all():
        return message
    kept: dict[str, Entry] = {}
    for name, entry in wrap_entries(message).items():
        rows = entry.tensor[sound.to(entry.tensor.device)]
        kept[name] = Field(rows)
        if isinstance(entry, Mean):
            kept[name] = Mean(rows, entry.weights[sound.to(entry.weights.device)])
    return kept


def describe_composed(message: Message) -> dict[str, list[Any]]:
    """Return a JSON-able description of the entries that ``wrap_entries`` splits in two.

    It has the number of models of each entry, and the type of the rows of a mixture or
    None for a pool.
    """
    described: dict[str, list[Any]] = {}
    for name, value in message.items():
        if isinstance(value, Pool):
            described[name] = [len(value.rows), None]
        elif isinstance(value, Mixture):
            described[name] = [len(value.rows), name_dtype(value.dtype)]
    return described


def unwrap(
    arrived: Mapping[str, Tensor], composed: Mapping[str, Sequence[Any]]
) -> Inbox:
    """Return the inbox of received tensors: the inverse of ``wrap_entries``.

    Mixtures are computed.

    Args:
        arrived: received tensors by name.
        composed: result of ``describe_composed``, possibly from another rank.
    """
    inbox: Inbox = dict(arrived)
    for name, (count, dtype) in composed.items():
        rows = arrived[name].view(count, -1)
        choice = inbox.pop(name + CHOICE)
        if dtype is None:
            inbox[name] = Pool(rows, choice)
        else:
            inbox[name] = Mixture(rows, choice, getattr(torch, dtype)).mix()
    return inbox


def name_dtype(dtype: torch.dtype) -> str:
    """Return the name of a type for NumPy and JSON, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def select_clients(inbox: Inbox, clients: Tensor) -> Inbox:
    """Return the part of an inbox for the clients at positions ``clients`` [k]."""
    return {
        name: value
        if isinstance(value, Tensor) and value.dim() == 1
        else value[clients.to(value.device)]
        for name, value in inbox.items()
    }


def move_inbox(inbox: Inbox, device: torch.device, pool_bytes: float) -> Inbox:
    """Return an inbox on a device.

    Args:
        inbox: received values.
        device: device of the clients.
        pool_bytes: size in bytes of the largest pool whose models are moved.
    """
    moved: Inbox = {}
    for name, value in inbox.items():
        if isinstance(value, Pool):
            rows = value.rows
            if rows.nbytes <= pool_bytes:
                rows = mixing.move_to_device(rows, device)
            moved[name] = Pool(rows, value.picks.to(device))
        else:
            moved[name] = mixing.move_to_device(value, device)
    return moved
