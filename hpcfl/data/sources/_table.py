"""Tables as data sets, a row for each sample: which columns are what, whatever file they
come from (heterogeneity.md D11).

Features are one column of images, texts or lists of numbers, or several columns of
numbers. Numbers are taken as in an npz file, but that columns of integers are values;
texts are taken as AG News's, with the vocabulary of the training samples. Labels are
class numbers, or names, which are numbered in their order.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from hpcfl.data import owners
from hpcfl.data.datasets import Dataset
from hpcfl.data.owners import Owners
from hpcfl.data.sources import ag_news, npz
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.experiment.plugins import few

TRAIN, TEST = "train", "test"
MOST_ROWS = 100_000_000
LABEL, CLIENT, SPLIT = "label", "client", "split"  # what columns are called by default


class Columns(ABC):
    """A table that is open.

    names: of its columns. split: to which part each row belongs, and clients: to whom,
    where the place of a file says so; else None.
    """

    names: list[str]
    split: np.ndarray | None = None
    clients: Owners | None = None

    @abstractmethod
    def column(self, name: str) -> np.ndarray:
        """The values of a column, [rows, …]: numbers, uint8 images [rows, channels,
        height, width], or texts, as objects.

        Raises UserError for other kinds of values, and for missing ones.
        """

    def class_names(self, name: str) -> list[str] | None:
        """What the table calls the class numbers in a column; None where it does not
        say.
        """
        return None


class TableSource(Source):
    """A user's own table; subclasses open its file."""

    own_file = True

    @abstractmethod
    def opened(self, root: Path) -> Columns:
        """The table in a file or folder. Raises UserError."""

    def read(
        self,
        name: str,
        root: Path,
        *,
        features: Annotated[
            list[str] | None,
            Field(description="the columns of a sample; default: all that are left"),
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
    ) -> Dataset:
        table = self.opened(root)
        asked = {"label": label, "client": client, "split": split}
        for key, column in asked.items():
            if column is not None:
                _refuse_unknown(root, key, column, table.names)
        client = client or (CLIENT if CLIENT in table.names else None)
        split = split or (SPLIT if SPLIT in table.names else None)
        if features is None:
            features = [
                column for column in table.names if column not in (label, client, split)
            ]
        for column in features:
            _refuse_unknown(root, "features", column, table.names)
        parts = table.split if split is None else table.column(split)
        labels, classes = _labels(root, table, label)
        order, tested = _order(parts, len(labels))
        if tested == len(order):
            raise UserError(f"{root}: no row is for training")
        x = _samples(root, table, features, order, len(order) - tested)
        arrays = {"x": x, "y": labels[order], "classes": np.array(classes)}
        left_out = len(labels) - len(order)
        dataset = npz.made(
            root,
            arrays,
            official_test=tested,
            owners=_owners(table, client, order),
        )
        if not left_out:
            return dataset
        note = f"{root}: {left_out:,} of {len(labels):,} rows are neither '{TRAIN}' nor '{TEST}'"
        return replace(dataset, notes=(*dataset.notes, note))


def _refuse_unknown(root: Path, key: str, column: str, names: list[str]) -> None:
    if column not in names:
        raise UserError(
            f"data.{key} = '{column}' is no column of {root}{few(column, names)}"
        )


def _order(parts: np.ndarray | None, rows: int) -> tuple[np.ndarray, int]:
    """The rows that are taken, those for training first, and how many are for testing."""
    if parts is None:
        return np.arange(rows), 0
    if parts.dtype != object:
        parts = parts.astype(str)
    train = np.flatnonzero(parts == TRAIN)
    test = np.flatnonzero(parts == TEST)
    return np.concatenate([train, test]), len(test)


def _labels(root: Path, table: Columns, name: str) -> tuple[np.ndarray, int]:
    """The class number of each row, int64 [rows], and how many classes there are.

    Raises UserError where the column holds neither numbers nor names.
    """
    values = table.column(name)
    if values.ndim != 1 or values.dtype.kind not in "iubO":
        raise UserError(
            f"{root}: the column '{name}' holds {values.dtype} {list(values.shape)}; labels "
            "are class numbers 0, 1, … or names"
        )
    if not len(values):
        raise UserError(f"{root}: no rows")
    if values.dtype == object:
        named, numbers = np.unique(values.astype(str), return_inverse=True)
        return numbers.astype(np.int64), len(named)
    class_names = table.class_names(name)
    classes = int(values.max()) + 1 if class_names is None else len(class_names)
    if not 0 < classes <= npz.MOST_CLASSES:
        raise UserError(
            f"{root}: the column '{name}' has {classes:,} classes, from 1 to "
            f"{npz.MOST_CLASSES:,} are allowed"
        )
    return values.astype(np.int64), classes


def _samples(
    root: Path, table: Columns, names: list[str], order: np.ndarray, trained: int
) -> np.ndarray:
    """The samples of the rows in ``order``, as ``npz.made`` takes them. Raises
    UserError.

    trained: how many of them, from the first, are for training.
    """
    if not names:
        raise UserError(f"{root}: no column is left for the samples: set data.features")
    columns: dict[str, np.ndarray] = {}
    for name in names:
        columns[name] = table.column(name)[order]
    first = columns[names[0]]
    if len(names) == 1 and first.dtype == object:
        texts = [ag_news.tokens(text) for text in first]
        return ag_news.encode(texts, known=trained)[0]
    if len(names) == 1 and first.ndim > 1:
        return first
    for name, values in columns.items():
        if values.ndim > 1 or values.dtype == object:
            raise UserError(
                f"{root}: the column '{name}' is not one of numbers, and there are others: "
                "say in data.features which columns are the samples"
            )
    numbers = [values.astype(np.float32) for values in columns.values()]
    return np.stack(numbers, axis=1)


def _owners(table: Columns, name: str | None, order: np.ndarray) -> Owners | None:
    """Whose the samples are, clients in the order of their numbers or names."""
    if name is None:
        given = table.clients
        return None if given is None else Owners(given.names, given.of[order])
    values = table.column(name)
    if values.dtype == object:
        values = values.astype(str)
    return owners.numbered(values[order])
