"""The schedule of checkpoints."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

# the largest share of a run's time for automatically scheduled checkpoints
SHARE = 0.02


class Schedule:
    """A schedule of checkpoints: every so many rounds, or with "auto" as often as SHARE
    allows.

    A checkpoint is due when the last one cost at most SHARE of the time since it was
    finished. Its cost is the time that training waited for it and the whole time of
    writing beside training.

    A checkpoint changes no numbers, so every rank uses its own clock. A checkpoint
    begins when any rank finds it due.
    """

    def __init__(
        self, every: int | Literal["auto"], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._clock = every, clock
        # seconds that the last checkpoint cost; at first 0, so that the first round
        # ends with a checkpoint that measures the cost
        self._cost = 0.0
        self._waited = (
            0.0  # seconds that training has waited for the checkpoint that is under way
        )
        self._under_way = False
        self._finished = clock()  # when the last checkpoint was

    def planned(self, round: int) -> bool:
        """Return whether a checkpoint is due at the end of ``round``, regardless of the
        clock.
        """
        return self._every != "auto" and round % self._every == 0

    def due(self, round: int) -> bool:
        """Return whether a checkpoint is due at the end of ``round``."""
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
        """Record that a checkpoint is under way."""
        self._under_way = True

    def finished(self, written_in: float) -> None:
        """Record that the checkpoint under way, if any, is finished.

        written_in: the seconds of writing it beside training.
        """
        if self._under_way:
            self._cost, self._waited, self._under_way = (
                self._waited + written_in,
                0.0,
                False,
            )
            self._finished = self._clock()
