"""What makes index lists a partition: samples that exist, in order, and apart where they have to be."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EVERYONE = -1  # the owner of a test set that all clients share


class _Held(NamedTuple):
    """One entry for every sample of every client: its number, whose it is, whether for testing."""

    samples: np.ndarray
    owners: np.ndarray
    tested: np.ndarray


def problem(train: Sequence[np.ndarray], test: Sequence[np.ndarray], samples: int, repeats: bool,
            shares: bool) -> str:
    """What keeps the clients' index lists from being a partition of ``samples`` samples in words, or nothing.

    Always: numbers in [0, samples), none to train and to test the same client on. Unless ``repeats``:
    those of a client ascend, none twice. Unless ``shares``: no sample goes to two clients, but all may
    be tested on the same.
    """
    held = _held(train, test)
    if held.samples.dtype.kind not in "iu":
        return f"sample numbers must be integers, not {held.samples.dtype}"
    return _outside(held, samples) or ("" if repeats else _disorder(held)) or _overlap(held, shares)


def _held(train: Sequence[np.ndarray], test: Sequence[np.ndarray]) -> _Held:
    """All lists one after the other; a test set of all clients once."""
    same = len(test) > 1 and all(np.array_equal(own, test[0]) for own in test)
    lists = [*train, *(test[:1] if same else test)]
    owners = [*range(len(train)), *([EVERYONE] if same else range(len(test)))]
    sizes = list(map(len, lists))
    tested = np.arange(len(lists)) >= len(train)
    return _Held(np.concatenate(lists), np.repeat(owners, sizes), np.repeat(tested, sizes))


def _outside(held: _Held, samples: int) -> str:
    wrong = np.flatnonzero((held.samples < 0) | (held.samples >= samples))
    if not len(wrong):
        return ""
    return f"{_who(held.owners[wrong[0]])}: no sample {held.samples[wrong[0]]} among {samples:,}"


def _disorder(held: _Held) -> str:
    one_list = (held.owners[1:] == held.owners[:-1]) & (held.tested[1:] == held.tested[:-1])
    wrong = np.flatnonzero(one_list & (held.samples[1:] <= held.samples[:-1]))
    return f"{_who(held.owners[wrong[0]])}: sample numbers must ascend, none twice" if len(wrong) else ""


def _overlap(held: _Held, shares: bool) -> str:
    order = np.lexsort((held.tested, held.owners, held.samples))
    samples, owners, tested = (column[order] for column in held)
    again, own = samples[1:] == samples[:-1], (owners[1:] == owners[:-1]) | (owners[:-1] == EVERYONE)
    for position in np.flatnonzero(again & own & (tested[1:] != tested[:-1]))[:1]:
        return f"{_who(owners[position + 1])}: sample {samples[position]} is to train and to test on"
    for position in () if shares else np.flatnonzero(again & ~own)[:1]:
        return f"clients {owners[position]} and {owners[position + 1]} both have sample {samples[position]}"
    return ""


def _who(owner: int) -> str:
    return "all clients" if owner == EVERYONE else f"client {owner}"
