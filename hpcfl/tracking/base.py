"""The contract of a tracker, which writes a run's numbers in the form that some other
tool shows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class Tracker(ABC):
    """One run in another tool; all of it is called in a thread of rank 0 for which the
    run does not wait.

    Whatever it raises ends the tracker and not the run.

    Attributes:
        package: what must be installed for it, by the name of its import; the extra of
            hpcfl is called the same.
    """

    package: ClassVar[str]

    @abstractmethod
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Begin, in a folder of the run's own, and in place of what lies there.

        After an interruption a tracker is told everything again, from round 1 on: so no
        round is missing and none is there twice, wherever the run was killed. config:
        the resolved configuration.
        """

    @abstractmethod
    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """Take a round's numbers, by names such as ``pre/weighted``; rounds come once
        each, ascending.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""
