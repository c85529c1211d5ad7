"""Checks of users' files and values, shared by all sources."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording

COLOURS = (1, 3, 4)  # usual numbers of channels, including alpha
LARGEST = float(np.finfo(np.float32).max)
TRIED = 10_000  # numbers of a column that are compared
FAINT = 20  # ratio of the scale to the largest value from which values are almost equal


def describe_labels(y: Tensor, samples: int, classes: int) -> str:
    """Return a description of the first mistake in labels; "" without one.

    Args:
        y: labels.
        samples: number of samples.
        classes: number of classes.
    """
    if not isinstance(y, Tensor):
        return f"y must be a tensor of int64; it is {type(y).__name__}"
    if len(y) != samples:
        return f"x has {samples:,} samples and y {len(y):,} labels"
    if not isinstance(classes, int):
        return f"classes = {classes!r} must be a Python integer"
    if y.dtype != torch.int64 or y.ndim != 1 or not len(y):
        return f"y must be int64 [samples]; it is {y.dtype} {list(y.shape)}"
    if y.min() < 0 or y.max() >= classes:
        held = f"{int(y.min())} … {int(y.max())}"
        return f"y must hold classes 0 … {classes - 1}; it holds {held}"
    return ""


def describe_channels_last(x: Tensor) -> str:
    """Return a note on samples that look like images with channels last, else ""."""
    if x.ndim != 4 or x.dtype in (torch.int32, torch.int64):
        return ""
    channels, height, width = x.shape[1:]
    if width not in COLOURS or channels in COLOURS:
        return ""
    return (
        f"samples are read as {channels} channels of {height}×{width} pixels; if they are "
        f"images of {channels}×{height} pixels, transpose x to [n, channels, height, width]"
    )


def describe_faint(x: Tensor, scale: float) -> str:
    """Return a note on values that the scale makes almost equal, else ""."""
    if x.dtype in (torch.int32, torch.int64) or scale == 1:
        return ""
    largest = max(float(x.max()), -float(x.min()))  # abs would copy all samples
    if not 0 < FAINT * largest < scale:
        return ""
    remedy = "set scale = 1.0, mean = (0.0,) and std = (1.0,)"
    if x.dtype == torch.uint8:
        remedy = "save them as float32"
    return (
        f"values up to {largest:g} are divided by scale = {scale:g}; if models should take "
        f"them unchanged, {remedy}"
    )


def describe_samples(x: Tensor, vocabulary: int | None) -> str:
    """Return a description of the first invalid value in samples; "" without one.

    Args:
        x: samples.
        vocabulary: number of token ids, or None.
    """
    numbers = torch.float32, torch.get_default_dtype()
    usable = torch.uint8, torch.int32, torch.int64, *numbers
    found = x.dtype if isinstance(x, Tensor) else type(x).__name__
    if found not in usable:
        return f"x must be a tensor of uint8, float32, int32 or int64; it is {found}"
    if x.dtype in (torch.int32, torch.int64):
        if x.min() < 0:
            return "x holds negative integers; integers are token ids, so use float32"
        if vocabulary is not None and x.max() >= vocabulary:
            return f"token ids must be from 0 to {vocabulary}, exclusive"
        return ""
    place = untrusted_files.describe_nonfinite(x.numpy())
    return f"x{place}" if place else ""


def describe_inputs(x: Tensor, stored: torch.dtype, vocabulary: int | None) -> str:
    """Return a description of the first value that a data set cannot hold; "" without one.

    Args:
        x: samples of a user.
        stored: type of the data set's samples; uint8 stands for pixels.
        vocabulary: number of token ids of the data set, or None.
    """
    if x.dtype == torch.bool or x.is_complex():
        return f"x must hold real numbers; it is {x.dtype}"
    values = x.detach().double().cpu()  # NumPy lacks some types of torch
    if stored.is_floating_point or not x.numel():
        place = untrusted_files.describe_nonfinite(values.numpy())
        return f"x{place}" if place else ""
    kind, largest = "token ids", torch.iinfo(torch.int64).max
    if vocabulary is not None:
        largest = vocabulary - 1
    if stored == torch.uint8:
        kind, largest = "pixels", torch.iinfo(torch.uint8).max
    lowest, highest = values.min().item(), values.max().item()
    if (values == values.round()).all() and lowest >= 0 and highest <= largest:
        return ""
    held = f"they are from {lowest:.4g} to {highest:.4g}"
    return f"{kind} must be whole numbers from 0 to {largest}; {held}"


def describe_normalisation(
    scale: float, mean: object, std: object, shape: Sequence[int]
) -> str:
    """Return a description of the first mistake in a normalisation; "" without one.

    Args:
        scale, mean, std: fields for ``datasets.Normalisation``.
        shape: shape of a sample, with its channels first.
    """
    if not isinstance(mean, tuple) or not isinstance(std, tuple):
        return f"mean and std must be tuples of numbers; they are {mean!r:.40}, {std!r:.40}"
    if len(mean) != len(std) or len(mean) not in (1, *shape[:1]):
        return "mean and std must have one number each, or one for each channel"
    if not np.isfinite([scale, *mean, *std]).all() or 0 in (scale, *std):
        return "scale, mean and std must be finite, and scale and std not 0"
    return ""


def describe_spellings(kind: str, names: Iterable[str]) -> str:
    """Return a note on the first two names that may be one name; "" without such names.

    They differ only in case or spaces, or are equal numbers: ``1`` and ``1.0``.

    Args:
        kind: plural noun for the named things, such as "classes".
        names: the names.
    """
    by_spelling: dict[str | float, str] = {}
    for name in names:
        other = by_spelling.setdefault(_fold_spelling(name), name)
        if other != name:
            return f"the {kind} '{other}' and '{name}' differ only in spelling"
    return ""


def _fold_spelling(name: str) -> str | float:
    """Return a key that is equal for all spellings of a name."""
    folded = wording.fold(name)
    try:
        number = float(folded)
    except ValueError:
        return folded
    return number if np.isfinite(number) else folded


def refuse_repeated(where: object, what: str, names: Collection[str]) -> None:
    """Raise UserError for the most frequent name if it occurs more than once.

    Args:
        where: file or key of the names, for the message.
        what: noun for a named thing, such as "column".
        names: the names.
    """
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(
            f"{where}: the {what} '{name}' occurs {count} times; names must differ"
        )


def refuse_infinite(where: str, values: np.ndarray, row: int) -> None:
    """Raise UserError for NaN and for numbers beyond float32.

    Args:
        where: file and column of the values, for the message.
        values: the values, [rows, …].
        row: number of their first row in the file.
    """
    position = untrusted_files.find_nonfinite(values)
    if position is None:
        return
    entry = f", entry {list(position[1:])}" if position[1:] else ""
    raise UserError(
        f"{where}: row {row + position[0]}{entry} holds {values[position]}; numbers must be "
        f"finite, at most {LARGEST:.2g} in magnitude"
    )


def refuse_indistinct(where: str, values: np.ndarray) -> None:
    """Raise UserError if float32 would merge most of the different numbers.

    Args:
        where: file and column of the numbers, for the message.
        values: the numbers [n]; the first TRIED are compared.
    """
    if values.dtype == np.float32:
        return
    tried = values[:TRIED]
    before = len(np.unique(tried))
    after = len(np.unique(tried.astype(np.float32)))
    if 2 * after < before:
        raise UserError(
            f"{where} has {before:,} different numbers, but only {after:,} in float32; "
            "subtract their minimum, or omit the column"
        )


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
