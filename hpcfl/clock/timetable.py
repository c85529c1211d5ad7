"""What a timetable says: which client starts when and from which model, when it arrives,
and which steps of the server its uploads are part of.

No time depends on a number that is trained, so a timetable is known before round 1. It
is computed anew whenever a run goes on, and needs no place in a checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcfl.clock.seconds import in_seconds


@dataclass(frozen=True)
class Job:
    """The work of one client from one model of the server.

    Attributes:
        version: the server's model that it starts from, which round ``version`` made; 0
            is that before round 1.
        begun, ended: ticks.
        share: of the epochs of each local training; 1 is all.
    """

    client: int
    version: int
    begun: int
    ended: int
    share: float = 1.0


@dataclass(frozen=True)
class Step:
    """A round: a step of the server, and what its clients did for it.

    Attributes:
        number: of the round, from 1; it makes the server's model of this number.
        begun, ended: ticks.
        jobs: whose uploads count, by ascending client; one a client.
        busy: ticks that clients were at work between the two, together.
        wasted: those of them, and of earlier ones, that no upload came of that counts,
            in the round in which that turned out.
        present: ticks that clients were on between the two, together.
        lost: how many jobs no upload came of that counts.
        awaited: the server's models, ascending, that clients started from whose uploads
            may count in a later round.
    """

    number: int
    begun: int
    ended: int
    jobs: Sequence[Job]
    busy: int
    wasted: int
    present: int
    lost: int
    awaited: Sequence[int] = ()

    @cached_property
    def cohort(self) -> np.ndarray:
        """The ids of the clients whose uploads count, ascending."""
        return np.array([job.client for job in self.jobs], np.int64)

    @property
    def staleness(self) -> list[int]:
        """How many steps the server has taken since each job started, before this one."""
        return [self.number - 1 - job.version for job in self.jobs]

    def numbers(self) -> dict[str, Any]:
        """What is recorded of the round, by name."""
        length = self.ended - self.begun
        staleness = self.staleness
        return {
            "time/seconds": in_seconds(self.ended),
            "time/started": in_seconds(self.begun),
            "time/arrivals": len(self.jobs),
            "time/lost": self.lost,
            "time/in_flight": self.busy / length if length else np.nan,
            "time/idle": 1 - self.busy / self.present if self.present else np.nan,
            "time/wasted": self.wasted / self.busy if self.busy else np.nan,
            "staleness/mean": float(np.mean(staleness)) if staleness else np.nan,
            "staleness/largest": max(staleness, default=0),
        }
