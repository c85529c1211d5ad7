"""The entries of a timetable: each client's jobs, and the server's steps with their
uploads.

No time depends on a trained number, so a timetable is known before round 1. A resumed
run computes it again, and checkpoints do not contain it.
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
        version: the server's model at its start, made by round ``version``; 0 is the
            model before round 1.
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
    """A round: a step of the server, and the work of its clients.

    Attributes:
        number: of the round, from 1; it makes the server's model of this number.
        begun, ended: ticks.
        jobs: those with counted uploads, by ascending client; one for each client.
        busy: the clients' working ticks between the two, in total.
        wasted: the working ticks of jobs without a counted upload, in the round in
            which they fail.
        present: the ticks of clients that are on between the two, in total.
        lost: the number of jobs without a counted upload.
        awaited: the server's models, ascending, from which clients started whose
            uploads may count in a later round.
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
        """Return the ids of the clients with counted uploads, ascending."""
        return np.array([job.client for job in self.jobs], np.int64)

    @property
    def staleness(self) -> list[int]:
        """Return the server's steps since each job's start, before this one."""
        return [self.number - 1 - job.version for job in self.jobs]

    def numbers(self) -> dict[str, Any]:
        """Return the recorded metrics of the round, by name."""
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
