"""Checks that index lists are a partition: samples that exist, in order, and apart
where they must be.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EVERYONE = -1  # stands for the owner of a test set that all clients have in common


class _Entries(NamedTuple):
    """Entries of every sample of every client: its number, its owner, whether it is for
    testing.
    """

    samples: np.ndarray
    owners: np.ndarray
    tested: np.ndarray


def problem(
    train: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    samples: int,
    repeats: bool,
    shares: bool,
) -> str:
    """Return the first reason why the clients' index lists are no partition; "" if they
    are one.

    Every number must lie in [0, samples), and no client trains and is tested on the
    same sample.

    Args:
        train: Each client's training samples.
        test: Each client's test samples.
        samples: How many samples there are.
        repeats: Whether a list may have a number twice, in any order; else its numbers
            must ascend.
        shares: Whether a sample may go to two clients; else only a test set may, which
            all clients have in common.
    """
    entries = _entries(train, test)
    if entries.samples.dtype.kind not in "iu":
        return f"sample numbers must be integers, not {entries.samples.dtype}"
    mistake = _outside(entries, samples)
    if not mistake and not repeats:
        mistake = _disorder(entries)
    return mistake or _overlap(entries, shares)


def _entries(train: Sequence[np.ndarray], test: Sequence[np.ndarray]) -> _Entries:
    """Return the entries of all lists, one list after the other; a common test set is
    listed once.
    """
    in_common = len(test) > 1 and all(np.array_equal(part, test[0]) for part in test)
    lists = list(train)
    owners = list(range(len(train)))
    if in_common:
        lists.append(test[0])
        owners.append(EVERYONE)
    else:
        lists.extend(test)
        owners.extend(range(len(test)))
    sizes = [len(samples) for samples in lists]
    tested = np.arange(len(lists)) >= len(train)
    return _Entries(
        samples=np.concatenate(lists),
        owners=np.repeat(owners, sizes),
        tested=np.repeat(tested, sizes),
    )


def _outside(entries: _Entries, samples: int) -> str:
    """Return a message on the first number that is no sample's."""
    is_outside = (entries.samples < 0) | (entries.samples >= samples)
    outside = np.flatnonzero(is_outside)
    if not len(outside):
        return ""
    first = outside[0]
    owner = _who(entries.owners[first])
    return f"{owner}: no sample {entries.samples[first]} among {samples:,}"


def _disorder(entries: _Entries) -> str:
    """Return a message on the first client with a list that does not ascend."""
    samples, owners, tested = entries
    # Each entry is compared with the one before it in the same list.
    same_owner = owners[1:] == owners[:-1]
    same_list = same_owner & (tested[1:] == tested[:-1])
    not_ascending = samples[1:] <= samples[:-1]
    positions = np.flatnonzero(same_list & not_ascending)
    if not len(positions):
        return ""
    owner = _who(owners[positions[0]])
    return f"{owner}: sample numbers must ascend, none twice"


def _overlap(entries: _Entries, shares: bool) -> str:
    """Return a message on the first sample that a client both trains and is tested on,
    or that two clients have.
    """
    order = np.lexsort((entries.tested, entries.owners, entries.samples))
    # Entries of the same sample now lie side by side, that of the common test set first.
    samples = entries.samples[order]
    owners = entries.owners[order]
    tested = entries.tested[order]
    same_sample = samples[1:] == samples[:-1]
    same_client = (owners[1:] == owners[:-1]) | (owners[:-1] == EVERYONE)
    other_part = tested[1:] != tested[:-1]
    in_both_parts = np.flatnonzero(same_sample & same_client & other_part)
    if len(in_both_parts):
        first = in_both_parts[0]
        owner = _who(owners[first + 1])
        return f"{owner}: sample {samples[first]} is to train and to test on"
    of_two_clients = np.flatnonzero(same_sample & ~same_client)
    if len(of_two_clients) and not shares:
        first = of_two_clients[0]
        pair = f"clients {owners[first]} and {owners[first + 1]}"
        return f"{pair} both have sample {samples[first]}"
    return ""


def _who(owner: int) -> str:
    """Return the owner of a list, for a message."""
    return "all clients" if owner == EVERYONE else f"client {owner}"
