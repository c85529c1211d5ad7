"""Entries of the messages that carry updates to the server, and their bits.

Updates travel as means, or as rows if the server needs each client's update.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcfl.communication.message import Field, Mean
from hpcfl.updates.memory import MEMORY
from hpcfl.updates.vectors import CHANGE, join, split_columns

FLOAT_BITS = 32
DOWNLOAD = "download.bits"  # the entry with the bits of each client's download
# the entry with the clients' weights if updates travel as rows
WEIGHTS = "weights of updates"
BELOW = MEMORY + "below clip"  # the entry with the share of clients below the clip


def count_message_bits(entries: Iterable[Field | Mean], clients: int) -> Tensor:
    """Return the bits of a message for each client, float64 [n] on the CPU.

    Args:
        entries: The entries of the message.
        clients: The number of clients n.
    """
    bits = torch.zeros(clients).double()
    for entry in entries:
        floats = torch.as_tensor(entry.count_floats(), device="cpu").double()
        bits += FLOAT_BITS * floats
    return bits


def list_widths(uploads: Mapping[str, int]) -> list[int]:
    """Return the widths of the updates among the uploads.

    Args:
        uploads: The width of each uploaded entry by name.
    """
    others = WEIGHTS, BELOW
    return [width for name, width in uploads.items() if name not in others]


def list_received(means: Mapping[str, Mean]) -> list[str]:
    """Return the names of the received values that uploads belong to."""
    return [mean.change_of or name for name, mean in means.items()]


def join_updates(means: Mapping[str, Mean], inbox: Mapping[str, Tensor]) -> Tensor:
    """Return the concatenated updates of all entries, [n, P]."""
    updates = []
    for name, mean in means.items():
        is_change = bool(mean.change_of)
        updates.append(mean.tensor if is_change else mean.tensor - inbox[name])
    return join(updates)


def pack(
    means: Mapping[str, Mean], updates: Tensor, bits: Tensor, as_rows: bool
) -> dict[str, Mean | Field]:
    """Return the entries that carry the updates and replace ``means``.

    Args:
        means: The entries of the method's upload.
        updates: The concatenated updates [n, P].
        bits: The bits of each client's message [n], which are counted with the first
            entry.
        as_rows: Whether each client's update travels to the server; otherwise only the
            mean does.
    """
    weights = next(iter(means.values())).weights
    widths = {name: mean.tensor.shape[1] for name, mean in means.items()}
    sent: dict[str, Mean | Field] = {}
    if as_rows:
        sent[WEIGHTS] = Field(weights.double()[:, None], floats=0)
    floats: float | Tensor = bits / FLOAT_BITS
    for name, rows in split_columns(updates, widths).items():
        start = means[name].change_of
        entry = f"{name}{CHANGE}{start}" if start else name
        if as_rows:
            sent[entry] = Field(rows, floats)
        else:
            sent[entry] = Mean(rows, weights, floats)
        floats = 0.0
    return sent


@dataclass(frozen=True)
class Arrived:
    """Updates that arrived on rank 0.

    Attributes:
        values: Rows [n, width] or a mean [width] by the name of the entry.
        weights: Weights of the clients, float64 [n].
        below: Share of the clients with an update below the clip, 0 without adaptive
            clip.
    """

    values: Mapping[str, Tensor]
    weights: Tensor
    below: float

    @property
    def widths(self) -> dict[str, int]:
        """Return the width of each entry."""
        return {name: value.shape[-1] for name, value in self.values.items()}

    @property
    def received(self) -> list[str]:
        """Return the names of the received values that the entries belong to."""
        return [name.rpartition(CHANGE)[2] for name in self.values]

    def join(self) -> Tensor:
        """Return the concatenated updates of all entries, [n, P] or [P]."""
        return join([*self.values.values()])


def find_own_name(entry: str) -> str:
    """Return the name of an entry in the method's upload."""
    return entry.partition(CHANGE)[0]


def unpack(uplink: Mapping[str, Tensor], clients: int) -> Arrived:
    """Return the updates in an uplink, in the order of names.

    Args:
        uplink: The tensors that arrived, by name.
        clients: The number of clients n.
    """
    entries = {name: uplink[name] for name in sorted(uplink, key=find_own_name)}
    equal = torch.ones(clients, 1).double()
    weights = entries.pop(WEIGHTS, equal)[:, 0]
    below = entries.pop(BELOW, torch.zeros(1)).item()
    return Arrived(entries, weights, below)
