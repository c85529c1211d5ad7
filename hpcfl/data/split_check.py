"""What makes index lists a partition: samples that exist, in order, and apart where
they must be.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EVERYONE = -1  # stands for the owner of a test set that all clients have in common


class _Entries(NamedTuple):
    """One entry for every sample of every client: its number, whose it is, whether it
    is for testing.
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
    """Why the clients' index lists are no partition of ``samples`` samples, in words;
    "" if they are one.

    Every number must lie in [0, samples), and no client trains and is tested on the
    same sample. Unless ``repeats``, the numbers in a list must ascend, none twice.
    Unless ``shares``, no sample goes to two clients, but all clients may have the same
    test set.
    """
    entries = _entries(train, test)
    if entries.samples.dtype.kind not in "iu":
        return f"sample numbers must be integers, not {entries.samples.dtype}"
    return (
        _outside(entries, samples)
        or ("" if repeats else _disorder(entries))
        or _overlap(entries, shares)
    )


def _entries(train: Sequence[np.ndarray], test: Sequence[np.ndarray]) -> _Entries:
    """The entries of all lists, one list after the other; a common test set is listed
    once.
    """
    same = len(test) > 1 and all(np.array_equal(own, test[0]) for own in test)
    lists = [*train, *(test[:1] if same else test)]
    owners = [*range(len(train)), *([EVERYONE] if same else range(len(test)))]
    sizes = list(map(len, lists))
    tested = np.arange(len(lists)) >= len(train)
    return _Entries(
        np.concatenate(lists), np.repeat(owners, sizes), np.repeat(tested, sizes)
    )


def _outside(entries: _Entries, samples: int) -> str:
    """The first number that is no sample's."""
    wrong = np.flatnonzero((entries.samples < 0) | (entries.samples >= samples))
    if not len(wrong):
        return ""
    return f"{_who(entries.owners[wrong[0]])}: no sample {entries.samples[wrong[0]]} among {samples:,}"


def _disorder(entries: _Entries) -> str:
    """The first client with a list that does not ascend."""
    samples, owners, tested = entries
    one_list = (owners[1:] == owners[:-1]) & (tested[1:] == tested[:-1])
    wrong = np.flatnonzero(one_list & (samples[1:] <= samples[:-1]))
    return (
        f"{_who(owners[wrong[0]])}: sample numbers must ascend, none twice"
        if len(wrong)
        else ""
    )


def _overlap(entries: _Entries, shares: bool) -> str:
    """The first sample that a client both trains and is tested on, or that two clients
    have.
    """
    order = np.lexsort((entries.tested, entries.owners, entries.samples))
    # equal samples now lie side by side, one that is in the common test set before its
    # other entries
    samples, owners, tested = (values[order] for values in entries)
    again, own = (
        samples[1:] == samples[:-1],
        (owners[1:] == owners[:-1]) | (owners[:-1] == EVERYONE),
    )
    for position in np.flatnonzero(again & own & (tested[1:] != tested[:-1]))[:1]:
        return f"{_who(owners[position + 1])}: sample {samples[position]} is to train and to test on"
    for position in () if shares else np.flatnonzero(again & ~own)[:1]:
        return f"clients {owners[position]} and {owners[position + 1]} both have sample {samples[position]}"
    return ""


def _who(owner: int) -> str:
    return "all clients" if owner == EVERYONE else f"client {owner}"
