"""Messages as vectors: the floating-point entries of a message side by side.

Every entry of an upload must be a Mean of a value that all clients received under the
same name, or a change of one (``Mean.change_of``).
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from hpcfl.communication.message import Field, Inbox, Mean, Message, fields
from hpcfl.errors import UserError
from hpcfl.methods.base import State
from hpcfl.rows.layout import Layout

CLIP = "update.clip"  # the entry with the adaptive clip, which has no update
CHANGE = ":"  # in the name of an upload, before that of the value that it changes
FLOAT_BITS = 32


def count_message_bits(entries: Iterable[Field | Mean], clients: int) -> Tensor:
    """Return the bits that each client sends or receives, float64 [n] on the CPU."""
    bits = torch.zeros(clients).double()
    for entry in entries:
        floats = torch.as_tensor(entry.logical_floats(), device="cpu").double()
        bits += FLOAT_BITS * floats
    return bits


def check_upload(inbox: Inbox, message: Message) -> dict[str, Mean]:
    """Return the entries of an upload, which must be means of received values with the
    same weights.

    Raises UserError that names another entry.
    """
    means: dict[str, Mean] = {}
    for name, entry in fields(message).items():
        if problem := _find_problem(name, entry, inbox):
            raise UserError(
                f"the clients' upload '{name}' {problem}; [privacy], [transform], "
                "[compression], [attack] and [aggregation] need means of what the clients "
                "received under the same name; take another method"
            )
        assert isinstance(entry, Mean)
        means[name] = entry
        first = next(iter(means.values())).weights
        if not torch.equal(entry.weights, first):
            raise UserError(
                f"the clients' upload '{name}' has other weights than "
                f"'{next(iter(means))}'; set method.weights = 'uniform' or take another "
                "method"
            )
    return means


def _find_problem(name: str, entry: Field | Mean, inbox: Inbox) -> str:
    """Return why an entry of an upload has no update, "" if it has one."""
    if not isinstance(entry, Mean):
        return "is each client's own"
    if (entry.change_of or name) not in inbox:
        return "was not received"
    received = inbox[entry.change_of or name]
    if not isinstance(received, Tensor) or received.dim() != 1:
        return "was received with a value for each client"
    if entry.tensor.dim() != 2 or entry.weights.dim() != 1:
        return "has several means"
    if entry.tensor.shape[1:] != received.shape:
        return "has another shape than what was received"
    return ""


def find_update(mean: Mean, name: str, inbox: Inbox) -> Tensor:
    """Return the updates of an entry, [n, width]."""
    return mean.tensor if mean.change_of else mean.tensor - inbox[name]


def find_widths(sent: Mapping[str, object]) -> dict[str, int]:
    """Return the width of each floating-point value that all clients receive alike, in
    the order of names.
    """
    widths = {}
    for name, value in sorted(sent.items()):
        tensor = value.tensor if isinstance(value, Field) else value
        if not isinstance(tensor, Tensor) or tensor.dim() != 1:
            continue
        if tensor.is_floating_point() and name != CLIP:
            widths[name] = len(tensor)
    return widths


def find_columns(sent: Mapping[str, object], received: Iterable[str]) -> Tensor:
    """Return the columns of received values among those of all that was sent, int64
    [P].
    """
    columns: dict[str, Tensor] = {}
    start = 0
    for name, width in find_widths(sent).items():
        columns[name] = torch.arange(start, start + width)
        start += width
    return torch.cat([columns[name] for name in received])


def find_layers(layout: Layout, widths: Mapping[str, int]) -> list[slice]:
    """Return the columns of each layer of a joined vector.

    An entry as wide as the model, its lower layers or its upper layers has their
    layers. Any other entry is one layer.
    """
    lengths: list[int] = []
    sizes = [columns.stop - columns.start for columns in layout.layers]
    for width in widths.values():
        parts = [sizes[:count] for count in range(1, len(sizes) + 1)]
        parts += [sizes[first:] for first in range(1, len(sizes))]
        fitting = [part for part in parts if sum(part) == width]
        lengths += fitting[0] if fitting else [width]
    ends = [0, *accumulate(lengths)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def join(parts: list[Tensor]) -> Tensor:
    """Return tensors side by side; a single one is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def split_columns(joined: Tensor, widths: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the entries of a joined tensor by name."""
    parts = torch.split(joined, [*widths.values()], dim=-1)
    return dict(zip(widths, parts, strict=True))


def add_changes(before: Mapping[str, Tensor], changes: Mapping[str, Tensor]) -> State:
    """Return the new values of entries by name, in the types of what was sent.

    before: the values that were sent. changes: the combined updates by the names of
    uploads. An upload that is itself a change of a value stays a change.
    """
    combined: State = {}
    for name, change in changes.items():
        own, is_change, of = name.partition(CHANGE)
        start = before[of if is_change else own]
        value = change if is_change else start.double() + change
        combined[own] = value.to(start.dtype)
    return combined
