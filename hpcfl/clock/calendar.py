"""The calendar of a run: each client's jobs, and the server's steps with their uploads.

No time depends on a trained number, so all steps are known before round 1, unless the
selection reads losses. A resumed run computes them again, and checkpoints do not
contain them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hpcfl.clock.durations import Duration, convert_to_seconds, describe_durations
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import Draws, RoundSchedule


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
            "time/seconds": convert_to_seconds(self.ended),
            "time/started": convert_to_seconds(self.begun),
            "time/arrivals": len(self.jobs),
            "time/lost": self.lost,
            "time/in_flight": self.busy / length if length else np.nan,
            "time/idle": 1 - self.busy / self.present if self.present else np.nan,
            "time/wasted": self.wasted / self.busy if self.busy else np.nan,
            "staleness/mean": float(np.mean(staleness)) if staleness else np.nan,
            "staleness/largest": max(staleness, default=0),
        }


class Timetable(Protocol):
    """A source of consecutive steps."""

    def step(self) -> Step: ...


class Calendar(RoundSchedule):
    """The rounds of a synchronous server with virtual time.

    Attributes:
        duration: the working time of each client.
    """

    def __init__(
        self,
        prepared: Prepared,
        draws: Draws,
        duration: Duration,
        timetable: Timetable,
    ) -> None:
        super().__init__(prepared, draws)
        self.duration = duration
        self._pace = np.array(duration.devices.pace, float)
        self._timetable = timetable
        self._steps: list[Step] = []
        # the jobs that started from each of the server's models, with their rounds
        self._started: dict[int, list[tuple[int, Job]]] = {}
        # after each step so far, how many of each client's uploads have counted
        self._updates = [np.zeros(draws.clients, np.int64)]

    def step(self, number: int) -> Step:
        """Return the step of a round, from 1. Raises UserError if there is none."""
        assert self.is_known(number)
        while len(self._steps) < number:
            step = self._timetable.step()
            updates = self._updates[-1].copy()
            updates[step.cohort] += 1
            self._steps.append(step)
            for job in step.jobs:
                started = self._started.setdefault(job.version, [])
                started.append((step.number, job))
            self._updates.append(updates)
        return self._steps[number - 1]

    def list_started(
        self, version: int, first: int, last: int
    ) -> list[tuple[int, Job]]:
        """Return the jobs that start from a version and belong to the given rounds.

        The rounds are ``first`` to ``last``; each job comes with its round, by client.
        """
        self.step(last)
        jobs = []
        for number, job in self._started.get(version, []):
            if first <= number <= last:
                jobs.append((number, job))
        return sorted(jobs, key=lambda one: one[1].client)

    def cohort(self, number: int) -> np.ndarray:
        """Return the ids of the clients whose uploads count in a round."""
        return self.step(number).cohort

    def epoch_shares(self, number: int) -> np.ndarray | None:
        """Return the share of the epochs that each of a round's cohort does."""
        return list_shares(self.step(number).jobs)

    def times(self, number: int) -> dict[str, Any]:
        """Return the recorded times of a round; ``clients/NAME`` [clients] is each
        client's own.
        """
        if number > self.config.rounds:
            now = convert_to_seconds(self.step(number - 1).ended)
            return {"time/seconds": now, "time/started": now}
        step = self.step(number)
        staleness = np.full(self.draws.clients, np.nan)
        staleness[step.cohort] = step.staleness
        updates = self._updates[number].astype(float)
        return {
            **step.numbers(),
            "clients/staleness": staleness,
            "clients/updates": updates,
            "participation/jain": compute_jain(updates),
            "participation/gini": compute_gini(updates),
            "participation/pace": compute_correlation(updates, self._pace),
        }

    def decisions(self) -> dict[str, str]:
        """Return the counted work, which decides all times."""
        work = self.duration.work
        return {
            "a client's work in a round is": f"{work.passes} passes, {work.floats_down} "
            f"floats down and {work.floats_up} floats up"
        }

    def describe(self) -> list[str]:
        """Return lines on the clients' work and devices."""
        return describe_durations(self.duration)

    def constants(self) -> dict[str, np.ndarray]:
        """Return each client's speed and links."""
        devices = self.duration.devices
        return {
            "device_pace": np.array(devices.pace),
            "device_down": np.array(devices.down),
            "device_up": np.array(devices.up),
        }


def list_shares(jobs: Sequence[Job]) -> np.ndarray | None:
    """Return the share of the epochs of each job, [n]; None where all are whole."""
    shares = np.array([job.share for job in jobs])
    return None if (shares == 1).all() else shares


def compute_jain(counts: np.ndarray) -> float:
    """Return Jain's index (Σc)²/(M Σc²) of counts [M] (Jain, Chiu & Hawe, DEC-TR-301,
    1984).

    It is 1 if all are equal, 1/M if one has all, and NaN if all are 0.
    """
    squares = float(np.square(counts).sum())
    return float(counts.sum()) ** 2 / (len(counts) * squares) if squares else np.nan


def compute_correlation(counts: np.ndarray, paces: np.ndarray) -> float:
    """Return Pearson's correlation of counts [M] with each client's time [M].

    It is negative if fast clients have more counts, and NaN if either is constant.
    """
    if counts.std() == 0 or paces.std() == 0:
        return np.nan
    return float(np.corrcoef(counts, paces)[0, 1])


def compute_gini(counts: np.ndarray) -> float:
    """Return the Gini coefficient of counts [M]: Σ_ij |c_i − c_j| / (2 M Σc).

    It is 0 if all are equal, and NaN if all are 0.
    """
    total = float(counts.sum())
    if not total:
        return np.nan
    # in ascending order Σ_ij |c_i − c_j| is 2 Σ_i i (M − i) (c_(i+1) − c_(i)), and all
    # of these are whole numbers
    clients = len(counts)
    gaps = np.diff(np.sort(counts))
    places = np.arange(1.0, clients)
    spread = float((places * (clients - places) * gaps).sum())
    return spread / (clients * total)
