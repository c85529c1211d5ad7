"""Messages as vectors: the floating-point entries of a message side by side."""

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise

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
