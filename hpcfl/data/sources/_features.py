"""Samples of a table: one column of images, texts or lists, or numbers of several
columns, with categories encoded (heterogeneity.md D11).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcfl.data.checks import is_number, refuse_indistinct
from hpcfl.data.sources import ag_news
from hpcfl.data.sources._columns import Columns
from hpcfl.errors import UserError

MOST_CATEGORIES = 1_000  # of a column
SHOWN = 5  # names in a note


class Features(NamedTuple):
    """Samples as ``npz.made`` takes them, the names of their numbers, and notes."""

    x: np.ndarray
    names: list[str]
    notes: list[str]


def read(
    root: Path,
    table: Columns,
    columns: dict[str, np.ndarray],
    trained: int,
    encode: bool,
) -> Features:
    """Make the samples of columns whose rows for training come first.

    trained: number of these rows. encode: whether each category of a column of texts or
    categories becomes a number, 0 or 1. Raises UserError.
    """
    first, values = next(iter(columns.items()))
    if len(columns) == 1 and values.dtype == object and not encode:
        tokens = [ag_news.tokens(text) for text in values]
        return Features(ag_news.encode(tokens, known=trained)[0], [first], [])
    if len(columns) == 1 and values.ndim > 1:
        return Features(values, [first], [])
    parts = []
    for name, values in columns.items():
        where = f"{root}: the column '{name}'"
        if values.ndim > 1:
            raise UserError(
                f"{where} holds {values.dtype} {list(values.shape)}, and there are other columns; "
                f"set data.features = ['{name}'], or to the columns of numbers"
            )
        is_categorical = values.dtype == object or table.is_categorical(name)
        if encode and is_categorical:
            named = _with_names(values, table.class_names(name))
            parts.append(_one_hot(where, name, named, trained))
        else:
            parts.append(_numbers(where, name, values, is_categorical))
    return Features(
        np.concatenate([part.x for part in parts], axis=1),
        [name for part in parts for name in part.names],
        [note for part in parts for note in part.notes],
    )


def _numbers(
    where: str, name: str, values: np.ndarray, is_categorical: bool
) -> Features:
    """Return a column of numbers as it is. Raises UserError for texts."""
    if values.dtype == object:
        raise UserError(_advice_on_texts(where, values))
    refuse_indistinct(where, values)
    notes = []
    if is_categorical:
        notes.append(
            f"{where} holds categories, which are used by number; data.encode = 'one-hot' "
            "gives each an input of its own"
        )
    return Features(values.astype(np.float32)[:, None], [name], notes)


def _with_names(values: np.ndarray, class_names: list[str] | None) -> np.ndarray:
    """Return the names of class numbers, where they have names."""
    return values if class_names is None else np.array(class_names, object)[values]


def _one_hot(where: str, name: str, values: np.ndarray, trained: int) -> Features:
    """Encode a column by the categories of its first ``trained`` rows; others are zeros."""
    from sklearn.preprocessing import OneHotEncoder  # takes a second to import

    known = np.unique(values[:trained])
    if len(known) > MOST_CATEGORIES:
        raise UserError(
            f"{where} has {len(known):,} categories, at most {MOST_CATEGORIES:,} are encoded; "
            "leave it out by data.features"
        )
    encoder = OneHotEncoder(
        handle_unknown="ignore", sparse_output=False, dtype=np.float32
    )
    encoder.fit(values[:trained, None])
    names = [f"{name}={category}" for category in known]
    unknown = np.setdiff1d(values, known)
    notes = []
    if len(unknown):
        shown = ", ".join(repr(str(category)) for category in unknown[:SHOWN])
        more = ", …" if len(unknown) > SHOWN else ""
        notes.append(
            f"{where}: no training row has the categories {shown}{more} of test rows; their "
            "inputs are all 0"
        )
    return Features(encoder.transform(values[:, None]), names, notes)


def _advice_on_texts(where: str, values: np.ndarray) -> str:
    text = next((text for text in values if not is_number(text)), values[0])
    return (
        f"{where} is not one of numbers: it holds {text!r:.60}; set data.encode = 'one-hot' to "
        "have an input for each of its values (data.normalise = 'statistics' standardises the "
        "other columns), or list the columns of a sample in data.features"
    )
