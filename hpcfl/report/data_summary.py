"""Text of ``hpcfl check`` on how the data of an experiment were understood."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hpcfl.communication.communicator import Communicator
from hpcfl.data.datasets import Dataset
from hpcfl.data.partition import Groups
from hpcfl.report.text import plain
from hpcfl.simulation.prepare import Prepared

WIDTH = 80
INDENT = 12  # letters of a line's name
ROOM = 3 * (WIDTH - INDENT)  # letters of a list that is not shown whole
LONGEST = 40  # letters of a name in such a list
NO_BREAK = "\u00a0"  # a space at which no line ends; ``plain`` writes a name's own out
TOKENS = (torch.int32, torch.int64)


@dataclass(frozen=True)
class ValueRange:
    """The least and the greatest stored number in each channel or column of the samples
    of all clients.
    """

    lowest: tuple[float, ...]
    highest: tuple[float, ...]


def find_range(prepared: Prepared, communicator: Communicator) -> ValueRange | None:
    """Return the range of the samples as clients see them; None on all ranks but rank 0.

    Collective.
    """
    x = prepared.resources.samples.x
    others = [dimension for dimension in range(x.ndim) if dimension != 1]
    own = [x.amin(others).tolist(), x.amax(others).tolist()] if x.numel() else None
    found = communicator.gather(own)
    if found is None:
        return None
    known = [ends for ends in found if ends is not None]
    lowest = np.min([low for low, _ in known], axis=0)
    highest = np.max([high for _, high in known], axis=0)
    return ValueRange(tuple(lowest.tolist()), tuple(highest.tolist()))


def describe_data(prepared: Prepared, values: ValueRange, whole: bool = False) -> str:
    """Return lines on columns, samples, classes and clients of an experiment.

    values: of the samples. whole: show all entries of long lists.
    """
    room = None if whole else ROOM
    facts = {
        "data": _describe_samples(prepared),
        "features": _describe_features(prepared.data, room),
        "sample": describe_layout(prepared.data),
        "values": _describe_values(prepared.data, values),
        "label": _describe_label(prepared.data),
        "classes": _describe_classes(prepared, room),
        "client": _describe_client_column(prepared),
        **_describe_clients(prepared),
    }
    if prepared.split.groups is not None:
        facts["groups"] = describe_groups(prepared.split.groups, room)
    return "\n".join(_wrap(name, text) for name, text in facts.items())


def _wrap(name: str, text: str) -> str:
    """Return a line's name and its text, on as many lines as it needs."""
    filled = textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{name:{INDENT}}",
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
    )
    return filled.replace(NO_BREAK, " ")


def shorten_list(entries: Sequence[str], room: int | None) -> str:
    """Return entries as a list; beyond ``room`` letters without those in its middle,
    but with their number.
    """
    text = ", ".join(entries)
    if room is None or len(text) <= room:
        return text
    cut = [_shorten_name(entry) for entry in entries]
    half = room // 2
    first = _fitting(cut, half)
    last = _fitting(cut[first:][::-1], half)
    left_out = len(cut) - first - last
    if not left_out:
        return ", ".join(cut)
    end = cut[len(cut) - last :]
    return ", ".join(
        [*cut[:first], f"… {left_out:,} more …".replace(" ", NO_BREAK), *end]
    )


def _fitting(entries: Sequence[str], room: int) -> int:
    """Return how many entries, from the first, fit; at least one of several."""
    ends = np.cumsum([len(entry) + len(", ") for entry in entries])
    return max(int((ends <= room).sum()), min(1, len(entries)))


def _shorten_name(name: str) -> str:
    """Return a name without its middle, where it is long."""
    if len(name) <= LONGEST:
        return name
    half = LONGEST // 2
    return f"{name[: half - 1]}…{name[-half:]}"


def show_name(name: str) -> str:
    """Return a name on one line, in quotes where it would be misread in a list."""
    text = plain(name)
    is_clear = text == text.strip() and text and not set(text) & set(",:'\"")
    return text if is_clear else repr(text)


def _describe_samples(prepared: Prepared) -> str:
    """Return the data set's name and how many samples there are for which purpose."""
    clients = prepared.setup.clients
    split = prepared.split
    trained = int(prepared.counts[:clients].sum())
    held_out = sum(map(len, split.train[:clients])) - trained
    tested = int(prepared.test_counts[:clients].sum())
    file = prepared.config.data.file
    source = f" from {plain(file)}" if file else ""
    text = (
        f"{prepared.config.data.dataset}{source}, {split.samples:,} samples; clients train "
        f"on {trained:,}"
    )
    if held_out:
        text += f", hold out {held_out:,} for validation"
    if split.global_test and clients > 1:
        return f"{text} and are all tested on the same {len(split.test[0]):,}"
    return f"{text} and are tested on {tested:,}"


def _describe_features(data: Dataset, room: int | None) -> str:
    """Return the columns of a sample, or how many numbers it has."""
    names = data.description.features
    count = int(np.prod(data.shape))
    if not names:
        kind = "token ids" if data.x.dtype in TOKENS else "numbers"
        return f"{count:,} {kind} without names"
    kind = "column" if len(names) == 1 else "columns"
    shown = shorten_list([show_name(name) for name in names], room)
    return f"{len(names):,} {kind}: {shown}"


def describe_layout(data: Dataset) -> str:
    """Return what kind of sample models take the data for, with its dimensions."""
    sizes = " × ".join(map(str, data.shape))
    if data.x.dtype in TOKENS:
        vocabulary = f", vocabulary of {data.vocabulary:,}" if data.vocabulary else ""
        return f"text of {sizes} token ids{vocabulary}"
    if len(data.shape) == 1:
        return f"row of a table, {sizes} numbers"
    if len(data.shape) == 3:
        channels, height, width = data.shape
        kind = "channel" if channels == 1 else "channels"
        return (
            f"image of {channels} {kind} of {height} × {width} pixels (channels first)"
        )
    return f"array, {sizes}"


def _describe_values(data: Dataset, values: ValueRange) -> str:
    """Return the type and range of the numbers of samples, as stored and as models take
    them.
    """
    lowest, highest = min(values.lowest), max(values.highest)
    text = f"{_name_type(data.x)} from {lowest:,.6g} to {highest:,.6g}"
    if data.x.dtype in TOKENS:
        return text
    ends = torch.tensor([values.lowest, values.highest], dtype=data.x.dtype)
    per_channel = (2, -1, *[1] * (len(data.shape) - 1))
    taken = data.normalise(ends.view(per_channel))
    lowest, highest = taken.min().item(), taken.max().item()
    return (
        f"{text}; models take {_name_type(taken)} from {lowest:,.6g} to {highest:,.6g}"
    )


def _name_type(x: torch.Tensor) -> str:
    """Return the type of a tensor's numbers, such as ``uint8``."""
    return str(x.dtype).removeprefix("torch.")


def _describe_label(data: Dataset) -> str:
    """Return the column of the classes."""
    label = data.description.label
    return f"column {show_name(label)}" if label else "class numbers of the data set"


def _describe_classes(prepared: Prepared, room: int | None) -> str:
    """Return the classes in order, each with its samples to train and to be tested on."""
    data, clients = prepared.data, prepared.setup.clients
    trained = prepared.counts[:clients].sum(dim=0).long().tolist()
    tests = prepared.test_counts[:clients]
    tested = (tests[0] if prepared.split.global_test else tests.sum(dim=0)).long()
    entries = [
        f"{show_name(data.class_name(number))}:{NO_BREAK}{train:,}/{test:,}"
        for number, (train, test) in enumerate(
            zip(trained, tested.tolist(), strict=True)
        )
    ]
    of_client = (prepared.counts[:clients] > 0).sum(dim=1)
    fewest, most = int(of_client.min()), int(of_client.max())
    held = f"{most}" if fewest == most else f"{fewest} to {most}"
    return (
        f"{data.classes:,}, training/test samples: {shorten_list(entries, room)}; a client "
        f"trains on {held} of them"
    )


def _describe_client_column(prepared: Prepared) -> str:
    """Return where clients come from: a column, the data set, a file, or a scheme."""
    data, partition = prepared.data, prepared.config.partition
    by_scheme = f"partition.scheme = '{partition.scheme}'"
    if partition.file is not None:
        return f"read from partition.file = '{plain(partition.file)}'"
    if lists := getattr(partition, "lists", None):
        return f"read from partition.lists = '{plain(lists)}'"
    if data.owners is None:
        return f"drawn by {by_scheme}"
    column = data.description.client
    source = f"column {show_name(column)}" if column else "the data set"
    known = f"{source} with {len(data.owners.names):,} names"
    if prepared.split.names:
        return f"{known}, used by {by_scheme}"
    return f"drawn by {by_scheme}; {known} is not used"


def _describe_clients(prepared: Prepared) -> dict[str, str]:
    """Return lines on the smallest, median and largest client, by training samples, and
    on newcomers.
    """
    clients = prepared.setup.clients
    trained = prepared.counts.sum(dim=1).long().tolist()
    tested = prepared.test_counts.sum(dim=1).long().tolist()

    def describe(client: int) -> str:
        names = prepared.split.names
        name = f" '{plain(names[client])}'" if names else ""
        counts = f"{trained[client]:,}/{tested[client]:,}"
        return f"{counts} (client {client}{name})".replace(" ", NO_BREAK)

    order = sorted(range(clients), key=trained.__getitem__)
    smallest, median, largest = order[0], order[(clients - 1) // 2], order[-1]
    found = {
        "clients": f"{clients:,}, training/test samples: smallest {describe(smallest)}, "
        f"median {describe(median)}, largest {describe(largest)}"
    }
    if newcomers := trained[clients:]:
        found["newcomers"] = (
            f"{len(newcomers):,} more clients with {sum(newcomers):,} training samples"
        )
    return found


def describe_groups(groups: Groups, room: int | None) -> str:
    """Return how many clients are in each group of ``[[shift]]``."""
    counts = np.bincount(groups.group, minlength=len(groups.names))
    entries = [
        f"{show_name(name)}:{NO_BREAK}{count}"
        for name, count in zip(groups.names, counts.tolist(), strict=True)
    ]
    return shorten_list(entries, room)
