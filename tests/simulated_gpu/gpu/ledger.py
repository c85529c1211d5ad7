"""Work that a GPU would have received, by line of the package under test."""

import sys
from collections import Counter
from dataclasses import dataclass, field

import hpcfl

PACKAGE = hpcfl.__path__[0] + "/"


@dataclass(frozen=True)
class Copy:
    """A copy between the host and the device.

    pinned: Whether the host's side is page-locked. converts: Whether the host changes
    the type first.
    """

    to_gpu: bool
    shape: tuple[int, ...]
    bytes: int
    pinned: bool
    converts: bool
    line: str


@dataclass
class Ledger:
    """Record of a device's work.

    launches: kernels outside graphs, by operation. waits: waits of the host, by reason
    and line. unordered: sums in an order that the device determines, by operation and
    line.
    """

    launches: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    copies: list[Copy] = field(default_factory=list)
    unordered: Counter = field(default_factory=Counter)
    captures: int = 0
    replays: int = 0

    @property
    def launched(self) -> int:
        """Return the number of launches by the host: kernels and whole graphs."""
        return self.launches.total() + self.replays

    def clear(self):
        self.__init__()


def line() -> str:
    """Return the innermost running line of the package: ``clients/training.py:80``."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside the package, or in autograd's thread"
