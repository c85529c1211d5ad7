"""When a checkpoint is due."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

# the most of a run's time that goes into checkpoints that are scheduled automatically
SHARE = 0.02


class Schedule:
    """When a checkpoint is due: every so many rounds, or with "auto" as often as SHARE
    allows.

    That is when the last checkpoint cost at most SHARE of the time since it was
    finished. Its cost is the time that training waited for it, and all the time of
    writing it beside training, though only a part of that slows training down.

    A checkpoint changes no numbers, so neither does its moment: every rank asks its own
    clock, and a checkpoint is begun where one of them says so.
    """

    def __init__(
        self, every: int | Literal["auto"], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._clock = every, clock
        # seconds that the last checkpoint cost; at first 0, so that one comes after the
        # first round and tells
        self._cost = 0.0
        self._waited = (
            0.0  # seconds that training has waited for the checkpoint that is under way
        )
        self._under_way = False
        self._finished = clock()  # when the last checkpoint was

    def planned(self, round: int) -> bool:
        """Whether a checkpoint is due at the end of ``round``, whatever the clock says."""
        return self._every != "auto" and round % self._every == 0

    def due(self, round: int) -> bool:
        """Whether a checkpoint is due at the end of ``round``."""
        if self._every != "auto":
            return self.planned(round)
        return not self._under_way and self._cost <= SHARE * (
            self._clock() - self._finished
        )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waiting for a checkpoint."""
        before = self._clock()
        yield
        self._waited += self._clock() - before

    def begun(self) -> None:
        """Note that a checkpoint is under way."""
        self._under_way = True

    def finished(self, written_in: float) -> None:
        """Note that the checkpoint that was under way, if any, is finished.

        written_in: seconds that writing it beside training took.
        """
        if self._under_way:
            self._cost, self._waited, self._under_way = (
                self._waited + written_in,
                0.0,
                False,
            )
            self._finished = self._clock()
