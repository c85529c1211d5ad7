"""Facts on how a file was read, for a reader of ``hpcfl check``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataDescription:
    """The parts of a user's data and their meaning.

    Attributes:
        features: Names of the columns or arrays that are a sample, in order.
        label: Name of the column, array or folder that gives the class.
        client: Name of the column, array or folder that gives the client.
        classes: Names of the classes, by class number.
        notes: One line each for other facts.
    """

    features: tuple[str, ...] = ()
    label: str = ""
    client: str = ""
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
