"""Messages as vectors: concatenation of a message's floating-point entries."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from hpcfl.communication.message import Field
from hpcfl.methods.base import State
from hpcfl.rows.layout import Layout

CLIP = "update.clip"  # the entry with the adaptive clip, for which there is no update
CHANGE = ":"  # separates an upload's name from the name of the value that it changes


def find_widths(sent: Mapping[str, object]) -> dict[str, int]:
    """Return the width of each floating-point value that is equal for all clients, in
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
    """Return the columns of received values in the concatenated message, int64 [P].

    Args:
        sent: The entries of the message by name.
        received: The names of the values.
    """
    widths = find_widths(sent)
    whole = torch.arange(sum(widths.values()))
    columns = split_columns(whole, widths)
    return torch.cat([columns[name] for name in received])


def find_layers(layout: Layout, widths: Mapping[str, int]) -> list[slice]:
    """Return the columns of each layer of a concatenated vector.

    An entry with the width of the model, of its lower layers or of its upper layers is
    split into these layers. Any other entry is one layer.

    Args:
        layout: The layout of the model.
        widths: The width of each entry by name.
    """
    sizes = [columns.stop - columns.start for columns in layout.layers]
    layers = []
    start = 0
    for width in widths.values():
        for length in _find_lengths(sizes, width):
            stop = start + length
            layers.append(slice(start, stop))
            start = stop
    return layers


def _find_lengths(sizes: list[int], width: int) -> list[int]:
    """Return the lengths of the layers of an entry.

    Args:
        sizes: The lengths of the model's layers, from the lowest.
        width: The width of the entry.
    """
    for count in range(1, len(sizes) + 1):
        lower = sizes[:count]
        if sum(lower) == width:
            return lower
    for first in range(1, len(sizes)):
        upper = sizes[first:]
        if sum(upper) == width:
            return upper
    return [width]


def join(parts: list[Tensor]) -> Tensor:
    """Return the tensors concatenated along the last dimension."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def split_columns(joined: Tensor, widths: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the entries of a concatenated tensor by name."""
    lengths = list(widths.values())
    parts = torch.split(joined, lengths, dim=-1)
    return dict(zip(widths, parts, strict=True))


def add_changes(before: Mapping[str, Tensor], changes: Mapping[str, Tensor]) -> State:
    """Return the new values of entries by name, in the dtypes of the sent values.

    An upload that is itself a change of a value stays a change.

    Args:
        before: The sent values by name.
        changes: The combined updates by the names of the uploads.
    """
    combined: State = {}
    for name, change in changes.items():
        own, is_change, changed = name.partition(CHANGE)
        if is_change:
            combined[own] = change.to(before[changed].dtype)
        else:
            start = before[own]
            total = start.double() + change
            combined[own] = total.to(start.dtype)
    return combined
