"""Base class of data sets in tables with a sample per row (heterogeneity.md D11).

Keys assign the roles of columns: features, label, client and split. Features are one
column of images, texts or lists of numbers, or several columns of numbers. Integers in
columns are values, unlike in npz files. Texts are encoded as in AG News, with the
vocabulary of the training samples, or one-hot by categories. Labels are class numbers,
or names, which are numbered alphabetically.
"""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field
from torch import Tensor

from hpcfl.data import checks
from hpcfl.data.datasets import DataDescription, Dataset, Owners, number_owners
from hpcfl.data.sources import features as features_of
from hpcfl.data.sources import npz
from hpcfl.data.sources.base import Source
from hpcfl.data.sources.features import Columns
from hpcfl.errors import UserError, suggest
from hpcfl.files import wording

MOST_ROWS = 100_000_000
LABEL, CLIENT, SPLIT = "label", "client", "split"  # default names of columns
TRAIN, TEST = "train", "test"
MISSING = {"na", "nan", "n/a", "null", "none"}  # usual texts of missing values


class _Labels(NamedTuple):
    """Labels of a table.

    Attributes:
        numbers: class number of each row, int64 [rows].
        classes: number of classes.
        names: name of each class; empty if the table has class numbers only.
    """

    numbers: np.ndarray
    classes: int
    names: list[str]


class TableSource(Source):
    """A user's own table; subclasses open the file."""

    own_file = True

    @abstractmethod
    def open(self, root: Path) -> Columns:
        """Open the table in a file or folder. Raises UserError."""

    def read(
        self,
        name: str,
        root: Path,
        *,
        features: Annotated[
            list[str] | None,
            Field(
                description="columns of a sample; default: all other columns without indices "
                "and identifiers"
            ),
        ] = None,
        label: Annotated[str, Field(description="column of classes")] = LABEL,
        client: Annotated[
            str | None,
            Field(
                description="column of each sample's client; default: 'client' if it exists"
            ),
        ] = None,
        split: Annotated[
            str | None,
            Field(
                description="column with 'train' and 'test', other rows are dropped; "
                "default: 'split' if it exists"
            ),
        ] = None,
        encode: Annotated[
            Literal["one-hot"] | None,
            Field(
                description="one-hot: turn each category of texts and categorical columns in "
                "the training rows into an input, 0 or 1; other categories are all 0"
            ),
        ] = None,
    ) -> Dataset:
        table = self.open(root)
        asked = {"label": label, "client": client, "split": split}
        for key, column in asked.items():
            if column is not None:
                _refuse_unknown(root, key, column, table.names)
        free = set(table.names) - set(asked.values())
        client = client or (CLIENT if CLIENT in free else None)
        split = split or (SPLIT if SPLIT in free else None)
        roles = [column for column in (label, client, split) if column is not None]
        checks.refuse_repeated(root, "column of label, client or split", roles)
        if features is None:
            columns, notes = _guess_features(root, table, roles)
        else:
            columns, notes = _read_named_features(root, table, label, features), []
        labels = _read_labels(root, table, label)
        order, tested, of_order = _order_rows(root, table, split, len(labels.numbers))
        rows = {column: columns.pop(column)[order] for column in list(columns)}
        trained = len(order) - tested
        made = features_of.encode(
            root, table, rows, trained, one_hot=encode is not None
        )
        arrays = {
            "x": made.x,
            "y": labels.numbers[order],
            "classes": np.array(labels.classes),
        }
        if spellings := checks.describe_spellings("classes", labels.names):
            notes.append(f"{root}: {spellings}")
        for class_name in labels.names:
            if class_name.lower() in MISSING:
                notes.append(
                    f"{root}: {class_name} in the column '{label}' is read as the name of a class; "
                    "remove these rows if they lack a label"
                )
        dataset = npz.make_dataset(
            root,
            arrays,
            official_test=tested,
            numbers_words=made.numbers_words,
            owners=_read_owners(root, table, client, order),
            description=DataDescription(
                tuple(made.names), label, client or "", tuple(labels.names)
            ),
        )
        if not labels.names:
            notes += npz.describe_gaps(root, dataset.y, labels.classes)
        of_order += _describe_missing(root, labels, dataset.y)
        notes = [*dataset.notes, *table.notes, *notes, *of_order, *made.notes]
        return replace(dataset, notes=tuple(notes))


def _read_named_features(
    root: Path, table: Columns, label: str, features: list[str]
) -> dict[str, np.ndarray]:
    """Return the columns named in ``data.features``. Raises UserError."""
    checks.refuse_repeated("data.features", "column", features)
    if not features:
        raise UserError("data.features = []: list the columns of a sample")
    if label in features:
        raise UserError(
            f"data.features: '{label}' is the column of labels; remove it from the list"
        )
    for name in features:
        _refuse_unknown(root, "features", name, table.names)
    return {name: table.read_column(name) for name in features}


def _guess_features(
    root: Path, table: Columns, roles: list[str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the columns without a role, and notes on those that are left out.

    Raises UserError if none remains.
    """
    left = [name for name in table.names if name not in roles]
    index = [name for name in left if name in table.index]
    others = [name for name in left if name.lower() in (LABEL, CLIENT, SPLIT)]
    columns = {}
    for name in left:
        if name not in index + others:
            columns[name] = table.read_column(name)
    left_out = {"pandas' index": index, "labels, clients or parts": others}
    left_out["an identifier"] = features_of.find_identifiers(
        columns, table.rows_by_file
    )
    for name in left_out["an identifier"]:
        del columns[name]
    if not columns:
        raise UserError(f"{root}: no column remains for the samples; set data.features")
    notes = []
    for kind, names in left_out.items():
        if names:
            notes.append(
                f"{root}: column {wording.list_names(names)} looks like {kind} and is left out; "
                "to use it, list all features in data.features"
            )
    return columns, notes


def _refuse_unknown(root: Path, key: str, column: str, names: list[str]) -> None:
    if column not in names:
        raise UserError(
            f"data.{key} = '{column}': {root} has no such column{suggest(column, names)}"
        )


def _order_rows(
    root: Path, table: Columns, split: str | None, rows: int
) -> tuple[np.ndarray, int, list[str]]:
    """Order the rows of a table by part.

    Args:
        root: file or folder of the table.
        table: the table.
        split: column of the part, or None.
        rows: number of rows.

    Returns:
        Numbers of the rows used, training rows first; the number of test rows; and
        notes on dropped rows.

    Raises:
        UserError: No row is for training.
    """
    parts = table.split
    if split is not None:
        parts = _list_texts(table, split)
    if parts is None:
        return np.arange(rows), 0, []
    train = np.flatnonzero(parts == TRAIN)
    test = np.flatnonzero(parts == TEST)
    others = wording.list_names(np.setdiff1d(parts, [TRAIN, TEST]).tolist())
    if not len(train):
        raise UserError(
            f"{root}: no row has the part '{TRAIN}'; parts are {others or TEST}"
        )
    notes = []
    if others:
        left = rows - len(train) - len(test)
        notes.append(
            f"{root}: {left:,} of {rows:,} rows are dropped; their parts are {others}, not "
            f"'{TRAIN}' or '{TEST}'"
        )
    return np.concatenate([train, test]), len(test), notes


def _list_texts(table: Columns, column: str) -> np.ndarray:
    """Return a column as texts; class numbers become class names."""
    values = table.read_as_written(column)
    names = table.class_names(column)
    if names is not None:
        values = np.array(names, object)[values]
    return np.array(list(map(str, values)), object)


def _read_labels(root: Path, table: Columns, name: str) -> _Labels:
    """Return the labels. Raises UserError if they are neither class numbers nor names."""
    values = table.read_column(name)
    if values.ndim != 1 or values.dtype.kind not in "iubO":
        raise UserError(
            f"{root}: the column '{name}' holds {values.dtype} {list(values.shape)}; labels "
            "are class numbers 0, 1, …, as integers, or names"
        )
    if not len(values):
        raise UserError(f"{root}: the table has no rows")
    values = table.read_as_written(name)
    if values.dtype == object:
        written, numbers = np.unique(values, return_inverse=True)
        return _Labels(numbers.astype(np.int64), len(written), written.tolist())
    class_names = table.class_names(name) or []
    classes = len(class_names) or int(values.max()) + 1
    if not 0 < classes <= npz.MOST_CLASSES:
        raise UserError(
            f"{root}: the column '{name}' has {classes:,} classes; allowed are 1 to "
            f"{npz.MOST_CLASSES:,}"
        )
    return _Labels(values.astype(np.int64), classes, class_names)


def _describe_missing(root: Path, labels: _Labels, y: Tensor) -> list[str]:
    """Return a note if some class names have no sample, else nothing.

    Args:
        root: file or folder of the table.
        labels: labels of the table.
        y: class number of each sample.
    """
    counts = y.bincount(minlength=labels.classes).tolist()
    missing = [name for number, name in enumerate(labels.names) if not counts[number]]
    if not missing:
        return []
    return [
        f"{root}: no row for training or testing has the class {wording.list_names(missing)}, "
        "but models have an output for it"
    ]


def _read_owners(
    root: Path, table: Columns, name: str | None, order: np.ndarray
) -> Owners | None:
    """Return the owners of samples; clients are sorted by number or name.

    Args:
        root: file or folder of the table.
        table: the table.
        name: column of the clients, or None.
        order: row of each sample.
    """
    if name is None:
        given = table.clients
        return None if given is None else replace(given, numbers=given.numbers[order])
    values = table.read_as_written(name)
    if values.ndim != 1:
        raise UserError(
            f"{root}: the column '{name}' holds lists or images; a client must be a number or "
            "a name"
        )
    return number_owners(values[order])
