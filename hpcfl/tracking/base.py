"""The contract of a tracker, which writes a run's metrics in the format of another
tool.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class Tracker(ABC):
    """A run as another tool shows it.

    A thread of rank 0 calls every method; the run does not wait for it. An exception
    ends the tracker and not the run.

    Attributes:
        package: the import name of the required package; hpcfl has an extra of the same
            name.
    """

    package: ClassVar[str]

    @abstractmethod
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Begin to write in the tracker's folder and replace earlier contents.

        After an interruption the tracker receives every round again from round 1. No
        round is missing or repeated, wherever the run was killed. config: the resolved
        configuration.
        """

    @abstractmethod
    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write a round's numbers by name, such as ``pre/weighted``; rounds ascend."""

    @abstractmethod
    def close(self) -> None:
        """Write the remaining numbers."""
