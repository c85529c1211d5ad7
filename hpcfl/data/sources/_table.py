"""Tables as data sets, a row for each sample: which columns are what, whatever file they
come from (heterogeneity.md D11).

Features are one column of images, texts or lists of numbers, or several columns of
numbers. Numbers are taken as in an npz file, but that columns of integers are values;
texts are taken as AG News's, with the vocabulary of the training samples, or encoded by
their categories. Labels are class numbers, or names, which are numbered in their order.
"""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hpcfl.data import checks
from hpcfl.data.checks import refuse_repeated
from hpcfl.data.datasets import DataDescription, Dataset
from hpcfl.data.sources import _features, _identifiers, _names, npz
from hpcfl.data.sources._columns import Columns
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.experiment.plugins import nearest

MOST_ROWS = 100_000_000
LABEL, CLIENT, SPLIT = "label", "client", "split"  # what columns are called by default
SHOWN = 5  # names in a note


class _Roles(NamedTuple):
    """The columns that are no features."""

    label: str
    client: str | None
    split: str | None


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
        labels = _names.read_labels(root, table, label)
        order, tested, of_order = _names.order_rows(
            root, table, roles.split, len(labels.numbers)
        )
        rows = {column: columns.pop(column)[order] for column in list(columns)}
        trained = len(order) - tested
        made = _features.read(root, table, rows, trained, encode is not None)
        arrays = {
            "x": made.x,
            "y": labels.numbers[order],
            "classes": np.array(labels.classes),
        }
        clients = _names.read_owners(root, table, roles.client, order)
        if spellings := checks.describe_spellings("classes", labels.names):
            notes.append(f"{root}: {spellings}")
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
    other_roles = [name for name in left if name.lower() in (LABEL, CLIENT, SPLIT)]
    columns = {
        name: table.column(name) for name in left if name not in index + other_roles
    }
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
    return columns, [
        *_note_on_left_out(root, "pandas' index", index),
        *_note_on_left_out(
            root,
            "labels, clients or parts of the rows",
            other_roles,
            "name it in data.label, data.client or data.split, or ",
        ),
        *_note_on_left_out(root, "an identifier", identifiers),
    ]


def _note_on_left_out(
    root: Path, kind: str, names: list[str], remedy: str = ""
) -> list[str]:
    if not names:
        return []
    shown = ", ".join(repr(name) for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [
        f"{root}: column {shown}{more} looks like {kind} and is no feature; to use it, {remedy}"
        "name all features in data.features"
    ]


def _refuse_unknown(root: Path, key: str, column: str, names: list[str]) -> None:
    if column not in names:
        raise UserError(
            f"data.{key} = '{column}' is no column of {root}{nearest(column, names)}"
        )
