"""Labels, clients and parts of the rows of a table, compared by their names."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcfl.data.datasets import Owners, number_owners
from hpcfl.data.sources import npz
from hpcfl.data.sources._columns import Columns
from hpcfl.errors import UserError

TRAIN, TEST = "train", "test"
SHOWN = 5  # names in a note


class Labels(NamedTuple):
    """The class number of each row, int64 [rows], and names of the classes, if any."""

    numbers: np.ndarray
    classes: int
    names: list[str]


def order_rows(
    root: Path, table: Columns, split: str | None, rows: int
) -> tuple[np.ndarray, int, list[str]]:
    """Return the rows that are taken, those for training first, how many are for
    testing, and a note on the others. Raises UserError where none is for training.
    """
    parts = table.split if split is None else _list_texts(table, split)
    if parts is None:
        return np.arange(rows), 0, []
    train = np.flatnonzero(parts == TRAIN)
    test = np.flatnonzero(parts == TEST)
    others = np.setdiff1d(parts, [TRAIN, TEST])
    shown = ", ".join(repr(str(part)) for part in others[:SHOWN])
    if not len(train):
        raise UserError(
            f"{root}: no row is for training: the parts are {shown or repr(TEST)}, not '{TRAIN}'"
        )
    order = np.concatenate([train, test])
    if len(order) == rows:
        return order, len(test), []
    note = f"{root}: {rows - len(order):,} of {rows:,} rows are neither '{TRAIN}' nor '{TEST}' ({shown})"
    return order, len(test), [note]


def _list_texts(table: Columns, column: str) -> np.ndarray:
    """Return a column as texts, class numbers by their names."""
    values = table.as_written(column)
    names = table.class_names(column)
    if names is not None:
        values = np.array(names, object)[values]
    texts = np.empty(len(values), object)
    texts[:] = [str(value) for value in values]
    return texts


def read_labels(root: Path, table: Columns, name: str) -> Labels:
    """Read the labels. Raises UserError where they are neither numbers nor names."""
    values = table.column(name)
    if values.ndim != 1 or values.dtype.kind not in "iubO":
        raise UserError(
            f"{root}: the column '{name}' holds {values.dtype} {list(values.shape)}; labels "
            "are class numbers 0, 1, …, as integers, or names"
        )
    if not len(values):
        raise UserError(f"{root}: no rows")
    values = table.as_written(name)
    if values.dtype == object:
        written, numbers = np.unique(values, return_inverse=True)
        return Labels(numbers.astype(np.int64), len(written), written.tolist())
    class_names = table.class_names(name) or []
    classes = len(class_names) or int(values.max()) + 1
    if not 0 < classes <= npz.MOST_CLASSES:
        raise UserError(
            f"{root}: the column '{name}' has {classes:,} classes, from 1 to "
            f"{npz.MOST_CLASSES:,} are allowed"
        )
    return Labels(values.astype(np.int64), classes, class_names)


def read_owners(
    root: Path, table: Columns, name: str | None, order: np.ndarray
) -> Owners | None:
    """Return the owners of samples, in the order of their numbers or names."""
    if name is None:
        given = table.clients
        return None if given is None else Owners(given.names, given.of[order])
    values = table.as_written(name)
    if values.ndim != 1:
        raise UserError(
            f"{root}: the column '{name}' holds lists or images; clients have one number or "
            "name each"
        )
    return number_owners(values[order])
