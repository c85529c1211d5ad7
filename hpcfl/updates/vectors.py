"""Messages as vectors: the floating-point entries of a message side by side."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from hpcfl.communication.message import Field
from hpcfl.methods.base import State
from hpcfl.rows.layout import Layout

CLIP = "update.clip"  # the entry with the adaptive clip, which has no update
CHANGE = ":"  # in the name of an upload, before that of the value that it changes


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
    """Return the lengths of the layers of an entry of ``width`` numbers.

    sizes: of the model's layers, from the lowest.
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
    """Return tensors side by side; a single one is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def split_columns(joined: Tensor, widths: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the entries of a joined tensor by name."""
    lengths = list(widths.values())
    parts = torch.split(joined, lengths, dim=-1)
    return dict(zip(widths, parts, strict=True))


def add_changes(before: Mapping[str, Tensor], changes: Mapping[str, Tensor]) -> State:
    """Return the new values of entries by name, in the types of what was sent.

    before: the values that were sent. changes: the combined updates by the names of
    uploads. An upload that is itself a change of a value stays a change.
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
