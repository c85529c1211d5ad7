"""Checks that the parts of a data set fit one another, whichever source read it."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from hpcfl.data.owners import Owners
from hpcfl.files import values, wording

COLOURS = (1, 3, 4)  # channels of an image, alpha included


def describe_labels(y: Tensor, samples: int, classes: int) -> str:
    """Return the first mistake in the labels of so many samples; "" without one."""
    if len(y) != samples:
        return f"x has {samples:,} samples and y {len(y):,} labels"
    if y.dtype != torch.int64 or y.ndim != 1 or not len(y):
        return f"y must be int64 [samples]; it is {y.dtype} {list(y.shape)}"
    if y.min() < 0 or y.max() >= classes:
        held = f"{int(y.min())} … {int(y.max())}"
        return f"y must hold classes 0 … {classes - 1}; it holds {held}"
    return ""


def describe_channels_last(x: Tensor) -> str:
    """Return a note on samples that look like images with their channels last, else ""."""
    if x.ndim != 4 or x.dtype in (torch.int32, torch.int64):
        return ""
    channels, height, width = x.shape[1:]
    if width not in COLOURS or channels in COLOURS:
        return ""
    return (
        f"a sample is read as {channels} channels of {height}×{width} pixels; if it is an "
        f"image of {channels}×{height} pixels, transpose x to [n, channels, height, width]"
    )


def describe_samples(x: Tensor, vocabulary: int | None) -> str:
    """Return the first value of a sample that cannot be used; "" without one."""
    if x.dtype in (torch.int32, torch.int64):
        if x.min() < 0 or (vocabulary is not None and x.max() >= vocabulary):
            return f"token ids must be from 0 to {vocabulary}, exclusive"
        return ""
    place = values.describe_nonfinite(x.numpy())
    return f"x{place}" if place else ""


def describe_owners(owners: Owners | None, samples: int) -> str:
    """Return the first mistake in the clients of the samples; "" without one."""
    if owners is None:
        return ""
    of = owners.of
    if len(of) != samples:
        return f"owners has {len(of):,} entries for {samples:,} samples"
    if of.min() < 0 or of.max() >= len(owners.names):
        return (
            f"owners has a number that is no position in its {len(owners.names)} names"
        )
    names, counts = np.unique(owners.names, return_counts=True)
    if counts.max() > 1:
        return f"two clients have the name '{names[counts.argmax()]}'"
    return ""


def describe_spellings(kind: str, names: Iterable[str]) -> str:
    """Return a note on the first two names that may be spellings of one; "" without.

    Such names differ in case or spaces alone, or are the same number: ``1`` and ``1.0``.
    """
    by_spelling: dict[str | float, str] = {}
    for name in names:
        other = by_spelling.setdefault(_spelling(name), name)
        if other != name:
            return f"the {kind} '{other}' and '{name}' differ in spelling alone"
    return ""


def _spelling(name: str) -> str | float:
    """Return what all spellings of a name have in common."""
    folded = wording.fold(name)
    try:
        number = float(folded)
    except ValueError:
        return folded
    return number if np.isfinite(number) else folded
