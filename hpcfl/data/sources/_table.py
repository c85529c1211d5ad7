"""Tables as data sets, a row for each sample: which columns are what, whatever file they
come from (heterogeneity.md D11).

Features are one column of images, texts or lists of numbers, or several columns of
numbers. Numbers are taken as in an npz file, but that columns of integers are values;
texts are taken as AG News's, with the vocabulary of the training samples, or encoded by
their categories. Labels are class numbers, or names, which are numbered in their order.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hpcfl.data import owners
from hpcfl.data.datasets import Dataset
from hpcfl.data.description import DataDescription
from hpcfl.data.owners import Owners
from hpcfl.data.sources import _features, _identifiers, npz
from hpcfl.data.sources._columns import Columns, refuse_repeated
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.experiment.plugins import few

TRAIN, TEST = "train", "test"
MOST_ROWS = 100_000_000
LABEL, CLIENT, SPLIT = "label", "client", "split"  # what columns are called by default
SHOWN = 5  # names in a note


class _Roles(NamedTuple):
    """The columns that are no features."""

    label: str
    client: str | None
    split: str | None


class _Labels(NamedTuple):
    """The class number of each row, int64 [rows], and names of the classes, if any."""

    numbers: np.ndarray
    classes: int
    names: list[str]


class TableSource(Source):
    """A user's own table; subclasses open its file."""

    own_file = True

    @abstractmethod
    def opened(self, root: Path) -> Columns:
        """Open the table in a file or folder. Raises UserError."""

    def read(
        self,
        name: str,
        root: Path,
        *,
        features: Annotated[
            list[str] | None,
            Field(
                description="the columns of a sample; default: all that are left but indices "
                "and identifiers"
            ),
        ] = None,
        label: Annotated[str, Field(description="the column of classes")] = LABEL,
        client: Annotated[
            str | None,
            Field(
                description="the column that says whose each sample is; default: 'client' "
                "where there is one"
            ),
        ] = None,
        split: Annotated[
            str | None,
            Field(
                description="the column of 'train' and 'test', other rows are left out; "
                "default: 'split' where there is one"
            ),
        ] = None,
        encode: Annotated[
            Literal["one-hot"] | None,
            Field(
                description="one-hot: an input, 0 or 1, for each category of the training rows, "
                "for columns of texts and categories; other categories are all 0"
            ),
        ] = None,
    ) -> Dataset:
        table = self.opened(root)
        roles = _roles(root, table, label, client, split)
        columns, notes = _candidates(root, table, roles, features)
        labels = _labels(root, table, label)
        order, tested, of_order = _order(root, table, roles.split, len(labels.numbers))
        rows = {column: columns.pop(column)[order] for column in list(columns)}
        trained = len(order) - tested
        made = _features.read(root, table, rows, trained, encode is not None)
        arrays = {
            "x": made.x,
            "y": labels.numbers[order],
            "classes": np.array(labels.classes),
        }
        clients = _owners(root, table, roles.client, order)
        notes += _note_on_spellings(root, "classes", labels.names)
        if clients is not None:
            notes += _note_on_spellings(root, "clients", clients.names)
        dataset = npz.made(
            root,
            arrays,
            official_test=tested,
            owners=clients,
            description=DataDescription(
                tuple(made.names), label, roles.client or "", tuple(labels.names)
            ),
        )
        if not labels.names:
            notes += npz.gaps(root, dataset.y, labels.classes)
        return replace(
            dataset,
            notes=(*dataset.notes, *table.notes, *notes, *of_order, *made.notes),
        )


def _roles(
    root: Path, table: Columns, label: str, client: str | None, split: str | None
) -> _Roles:
    """Find the columns that are no features. Raises UserError."""
    asked = {"label": label, "client": client, "split": split}
    for key, column in asked.items():
        if column is not None:
            _refuse_unknown(root, key, column, table.names)
    free = [name for name in table.names if name not in asked.values()]
    client = client or (CLIENT if CLIENT in free else None)
    split = split or (SPLIT if SPLIT in free else None)
    roles = _Roles(label, client, split)
    refuse_repeated(
        root, "column of label, client or split", [name for name in roles if name]
    )
    return roles


def _candidates(
    root: Path, table: Columns, roles: _Roles, features: list[str] | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Read the columns of features, and note those that are left out.

    features: as ``data.features`` names them. Raises UserError.
    """
    if features is not None:
        refuse_repeated("data.features", "column", features)
        for name in features:
            _refuse_unknown(root, "features", name, table.names)
            if name == roles.label:
                raise UserError(
                    f"data.features: '{name}' is the column of labels; leave it out"
                )
        if not features:
            raise UserError("data.features = []: name the columns of a sample")
        return {name: table.column(name) for name in features}, []
    left = [name for name in table.names if name not in roles]
    index = [name for name in left if name in table.index]
    columns = {name: table.column(name) for name in left if name not in index}
    identifiers = [
        name
        for name, values in columns.items()
        if _identifiers.looks_like_identifier(name, values, table.rows_by_file)
    ]
    if len(columns) == 1 and next(iter(columns.values())).dtype == object:
        identifiers = []  # a sample is a text, which may well be a single word
    for name in identifiers:
        del columns[name]
    if not columns:
        raise UserError(f"{root}: no column is left for the samples: set data.features")
    notes = _note_on_left_out(root, "pandas' index", index)
    return columns, notes + _note_on_left_out(root, "an identifier", identifiers)


def _note_on_left_out(root: Path, kind: str, names: list[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(repr(name) for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [
        f"{root}: column {shown}{more} looks like {kind} and is no feature; to use it, name all "
        "features in data.features"
    ]


def _note_on_spellings(root: Path, what: str, names: Iterable[str]) -> list[str]:
    """Note two names that differ in case or spaces alone."""
    by_spelling: dict[str, str] = {}
    for name in names:
        spelling = "".join(name.split()).casefold()
        other = by_spelling.setdefault(spelling, name)
        if other != name:
            return [
                f"{root}: the {what} '{other}' and '{name}' differ in case or spaces alone"
            ]
    return []


def _refuse_unknown(root: Path, key: str, column: str, names: list[str]) -> None:
    if column not in names:
        raise UserError(
            f"data.{key} = '{column}' is no column of {root}{few(column, names)}"
        )


def _order(
    root: Path, table: Columns, split: str | None, rows: int
) -> tuple[np.ndarray, int, list[str]]:
    """Return the rows that are taken, those for training first, how many are for
    testing, and a note on the others. Raises UserError where none is for training.
    """
    parts = table.split if split is None else _named(table, split)
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


def _named(table: Columns, column: str) -> np.ndarray:
    """Return a column as texts, class numbers by their names."""
    values = table.as_written(column)
    names = table.class_names(column)
    if names is not None:
        values = np.array(names, object)[values]
    texts = np.empty(len(values), object)
    texts[:] = [str(value) for value in values]
    return texts


def _labels(root: Path, table: Columns, name: str) -> _Labels:
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
        return _Labels(numbers.astype(np.int64), len(written), written.tolist())
    class_names = table.class_names(name) or []
    classes = len(class_names) or int(values.max()) + 1
    if not 0 < classes <= npz.MOST_CLASSES:
        raise UserError(
            f"{root}: the column '{name}' has {classes:,} classes, from 1 to "
            f"{npz.MOST_CLASSES:,} are allowed"
        )
    return _Labels(values.astype(np.int64), classes, class_names)


def _owners(
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
    return owners.numbered(values[order])
