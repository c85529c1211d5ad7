"""Columns and names of a user's data, as ``hpcfl check`` shows them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataDescription:
    """The columns and names that a reader found in a data set; empty where it has none.

    Attributes:
        features: columns of a sample, in order.
        label: column of the classes.
        client: column of the clients.
        classes: names of the classes, by their numbers.
        notes: one line each for a user to know.
    """

    features: tuple[str, ...] = ()
    label: str = ""
    client: str = ""
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
