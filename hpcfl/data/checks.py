"""Checks of the files and values that users bring, whichever source reads them."""

import math
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording

COLOURS = (1, 3, 4)  # channels of an image, alpha included
LARGEST = float(np.finfo(np.float32).max)
TRIED = 10_000  # numbers of a column


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
    place = untrusted_files.describe_nonfinite(x.numpy())
    return f"x{place}" if place else ""


def describe_spellings(kind: str, names: Iterable[str]) -> str:
    """Return a note on the first two names that may be spellings of one; "" without.

    Such names differ in case or spaces alone, or are the same number: ``1`` and ``1.0``.
    """
    by_spelling: dict[str | float, str] = {}
    for name in names:
        other = by_spelling.setdefault(_fold_spelling(name), name)
        if other != name:
            return f"the {kind} '{other}' and '{name}' differ in spelling alone"
    return ""


def _fold_spelling(name: str) -> str | float:
    """Return what all spellings of a name have in common."""
    folded = wording.fold(name)
    try:
        number = float(folded)
    except ValueError:
        return folded
    return number if np.isfinite(number) else folded


def refuse_repeated(where: object, what: str, names: Collection[str]) -> None:
    """Raise UserError for a name that stands twice."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(
            f"{where}: the {what} '{name}' stands {count} times; names must differ"
        )


def refuse_infinite(where: str, values: np.ndarray, row: int) -> None:
    """Raise UserError for NaN and for numbers beyond float32.

    row: number of the first row of ``values``.
    """
    if values.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(np.float32))
    if not wrong.any():
        return
    position = tuple(np.argwhere(wrong)[0].tolist())
    entry = f", entry {list(position[1:])}" if position[1:] else ""
    raise UserError(
        f"{where}: row {row + position[0]}{entry} holds {values[position]}; numbers must be "
        f"finite, at most {LARGEST:.2g} in magnitude"
    )


def refuse_indistinct(where: str, values: np.ndarray) -> None:
    """Raise UserError for numbers [n] most of which would be equal in float32.

    The first rows, at most TRIED, are compared.
    """
    if values.dtype == np.float32:
        return
    tried = values[:TRIED]
    before = len(np.unique(tried))
    after = len(np.unique(tried.astype(np.float32)))
    if 2 * after < before:
        raise UserError(
            f"{where} has {before:,} different numbers, of which float32 keeps {after:,}; "
            "subtract their minimum, or leave the column out"
        )


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
