"""Describe the data of an experiment for ``hpcfl check``."""

import textwrap
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.communicator import Communicator
from hpcfl.data.datasets import Dataset
from hpcfl.report.text import escape, shorten
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.prepared_data import list_groups
from hpcfl.updates.base import Attack

WIDTH = 80
INDENT = 12  # width of the names in letters
MOST_ENTRIES = 6  # number of entries in a shortened list
ENTRY_LETTERS = 40  # letters of an entry in a shortened list
TOKENS = (torch.int32, torch.int64)


def find_range(prepared: Prepared, communicator: Communicator) -> Tensor | None:
    """Return the range of the stored values in each channel or column of the samples.
    Collective.

    Args:
        prepared: Prepared experiment.
        communicator: Communicator of all ranks.

    Returns:
        Minima and maxima as seen by clients, [2, channels]; None on ranks other than 0.
    """
    x = prepared.resources.samples.x
    others = [dimension for dimension in range(x.ndim) if dimension != 1]
    own = [x.amin(others).tolist(), x.amax(others).tolist()] if x.numel() else None
    found = communicator.gather(own)
    if found is None:
        return None
    known = [ends for ends in found if ends is not None]
    of_ranks = torch.tensor(known, dtype=x.dtype)
    return torch.stack([of_ranks[:, 0].amin(0), of_ranks[:, 1].amax(0)])


def describe_data(prepared: Prepared, values: Tensor, whole: bool = False) -> str:
    """Return lines on columns, samples, classes and clients of an experiment.

    Args:
        prepared: Prepared experiment.
        values: Range of the values, as ``find_range`` returns it.
        whole: Whether to show all entries of long lists.
    """
    data = prepared.data.dataset
    clients = prepared.setup.clients
    features = data.description.features
    label = data.description.label
    facts = {
        "data": _describe_samples(prepared),
        "features": f"{int(np.prod(data.shape)):,} without names",
        "sample": describe_layout(data),
        "values": _describe_values(data, values),
        "label": f"column {show_name(label)}" if label else "class numbers",
        "classes": _describe_classes(prepared, whole),
        "client": _describe_client_column(prepared),
        "clients": _describe_clients(prepared),
    }
    if features:
        listed = list_entries([show_name(name) for name in features], whole)
        columns = "column" if len(features) == 1 else "columns"
        facts["features"] = f"{len(features):,} {columns}: {listed}"
    newcomers = prepared.data.counts[clients:]
    if len(newcomers):
        trained = int(newcomers.sum())
        facts["newcomers"] = f"{len(newcomers):,} more with {trained:,} samples"
    drawn = list_groups(prepared.config, prepared.data)
    if drawn is not None:
        group, names = drawn
        sizes = np.bincount(group, minlength=len(names)).tolist()
        entries = []
        for name, size in zip(names, sizes, strict=True):
            entries.append(f"{show_name(name)}: {size}")
        facts["groups"] = list_entries(entries, whole)
    if prepared.config.attack is not None:
        facts["attackers"] = describe_attackers(prepared, whole)
    paragraphs = []
    for name, text in facts.items():
        paragraph = textwrap.fill(
            text,
            WIDTH,
            initial_indent=f"{name:{INDENT}}",
            subsequent_indent=" " * INDENT,
            break_on_hyphens=False,
        )
        paragraphs.append(paragraph)
    return "\n".join(paragraphs)


def describe_attackers(prepared: Prepared, whole: bool) -> str:
    """Return the number of attackers, their attack and knowledge, and their ids."""
    attack = cast(Attack, prepared.config.attack)
    ids = list(map(str, prepared.data.attackers.tolist()))
    clients = prepared.setup.clients
    facts = [f"{len(ids)} of {clients}, {attack.kind} from round {attack.since} on"]
    if attack.needs_honest:
        facts.append("they know the honest updates of their round")
    if ids and (numbers := attack.describe(len(ids), clients - len(ids))):
        facts.append(f"{numbers} if all clients take part")
    return f"{'; '.join(facts)}: {list_entries(ids, whole) or 'none'}"


def list_entries(entries: Sequence[str], whole: bool) -> str:
    """Return entries as a comma-separated list.

    Args:
        entries: Entries.
        whole: Whether to show all entries; otherwise the first ones and the number of
            further ones.
    """
    if whole:
        return ", ".join(entries)
    shown = [shorten(entry, ENTRY_LETTERS) for entry in entries[:MOST_ENTRIES]]
    left_out = len(entries) - MOST_ENTRIES
    more = f", … {left_out:,} more" if left_out > 0 else ""
    return ", ".join(shown) + more


def show_name(name: str) -> str:
    """Return a name on one line, in quotes if it could be misread in a list."""
    text = escape(name)
    is_clear = text == text.strip() and text and not set(text) & set(",:'\"")
    return text if is_clear else repr(text)


def _describe_samples(prepared: Prepared) -> str:
    """Return the data set's name and the numbers of samples for each purpose."""
    clients = prepared.setup.clients
    split = prepared.data.split
    trained = int(prepared.data.counts[:clients].sum())
    held_out = sum(map(len, split.train[:clients])) - trained
    tested = int(prepared.data.test_counts[:clients].sum())
    file = prepared.config.data.file
    source = f" from {escape(file)}" if file else ""
    text = (
        f"{prepared.config.data.dataset}{source}, {split.samples:,} samples; clients train "
        f"on {trained:,}"
    )
    if held_out:
        text += f", hold out {held_out:,} for validation"
    if split.has_global_test and clients > 1:
        return f"{text} and are all tested on the same {len(split.test[0]):,}"
    return f"{text} and are tested on {tested:,}"


def describe_layout(data: Dataset) -> str:
    """Return the kind of sample that models assume (text, table, image), with its shape."""
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


def _describe_values(data: Dataset, ends: Tensor) -> str:
    """Return the type and range of the samples' values, as stored and after
    normalisation.
    """
    text = _describe_range(ends)
    if data.x.dtype in TOKENS:
        return text
    per_channel = (2, -1, *[1] * (len(data.shape) - 1))
    return (
        f"{text}; models take {_describe_range(data.normalise(ends.view(per_channel)))}"
    )


def _describe_range(x: Tensor) -> str:
    """Return the type of a tensor with its minimum and maximum."""
    kind = str(x.dtype).removeprefix("torch.")
    return f"{kind} from {x.min().item():,.6g} to {x.max().item():,.6g}"


def _describe_classes(prepared: Prepared, whole: bool) -> str:
    """Return the classes in order with their numbers of training and test samples."""
    data, clients = prepared.data.dataset, prepared.setup.clients
    counts = prepared.data.counts[:clients]
    tests = prepared.data.test_counts[
        : 1 if prepared.data.split.has_global_test else clients
    ]
    trained = counts.sum(dim=0).long().tolist()
    tested = tests.sum(dim=0).long().tolist()
    entries = [
        f"{show_name(data.class_name(number))}: {train:,}/{test:,}"
        for number, (train, test) in enumerate(zip(trained, tested, strict=True))
    ]
    of_client = (counts > 0).sum(dim=1)
    fewest, most = int(of_client.min()), int(of_client.max())
    held = f"{most}" if fewest == most else f"{fewest} to {most}"
    listed = list_entries(entries, whole)
    return (
        f"{data.classes:,}, training/test samples: {listed}; a client trains on {held} of "
        "them"
    )


def _describe_client_column(prepared: Prepared) -> str:
    """Return the source of the clients: a column, the data set, a file or a scheme."""
    data, partition = prepared.data.dataset, prepared.config.partition
    by_scheme = f"partition.scheme = '{partition.scheme}'"
    if partition.file is not None:
        return f"read from partition.file = '{escape(partition.file)}'"
    if lists := getattr(partition, "lists", None):
        return f"read from partition.lists = '{escape(lists)}'"
    if data.owners is None:
        return f"drawn by {by_scheme}"
    column = data.description.client
    source = f"column {show_name(column)}" if column else "the data set"
    known = f"{source} with {len(data.owners.names):,} names"
    if prepared.data.split.names:
        return f"{known}, used by {by_scheme}"
    return f"drawn by {by_scheme}; {known} is not used"


def _describe_clients(prepared: Prepared) -> str:
    """Return the smallest, median and largest client by training samples."""
    clients = prepared.setup.clients
    trained = prepared.data.counts[:clients].sum(dim=1).long()
    tested = prepared.data.test_counts[:clients].sum(dim=1).long()
    order = trained.argsort(stable=True).tolist()
    places = {"smallest": 0, "median": (clients - 1) // 2, "largest": -1}
    parts = []
    for word, place in places.items():
        client = order[place]
        names = prepared.data.split.names
        name = f" '{escape(names[client])}'" if names else ""
        counts = f"{trained[client]:,}/{tested[client]:,}"
        parts.append(f"{word} {counts} (client {client}{name})")
    return f"{clients:,}, training/test samples: {', '.join(parts)}"
