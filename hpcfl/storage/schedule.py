"""When a checkpoint is due."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

SHARE = 0.02  # of the time of a run, at most, goes into checkpoints that are scheduled automatically


class Schedule:
    """Every so many rounds, or "auto": when what the last checkpoint cost is less than SHARE of the
    time since then.

    Rank 0's clock decides for all ranks. A checkpoint changes no numbers, so neither does its moment.
    The cost is the time that training waited and all time of writing beside it, though only a part of that
    slows training down.
    """

    def __init__(self, every: int | Literal["auto"], clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        # seconds, so that the first checkpoint comes after the first round and tells the cost
        self._cost = 0.0
        self._held = 0.0  # seconds that training has waited for the checkpoint that is under way
        self._under_way = False
        self._finished = clock()

    def due(self, round: int) -> bool:
        """At the end of ``round``."""
        if self._every != "auto":
            return round % self._every == 0
        return not self._under_way and self._cost <= SHARE * (self._clock() - self._finished)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Training waits for a checkpoint inside the block."""
        before = self._clock()
        yield
        self._held += self._clock() - before

    def begun(self) -> None:
        """A checkpoint is under way."""
        self._under_way = True

    def finished(self, written_in: float) -> None:
        """Whatever was under way is finished; writing it beside training took so many seconds."""
        if self._under_way:
            self._cost, self._held, self._under_way = self._held + written_in, 0.0, False
            self._finished = self._clock()
