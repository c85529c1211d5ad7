"""The calendar of a run: jobs of each client, and steps of the server with their
uploads.

No time depends on a trained number, so all steps are known before round 1, unless the
selection of clients uses losses. A resumed run computes the steps again; checkpoints do
not contain them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcfl.clock.availability import OnlineClients
from hpcfl.clock.clients import Clients
from hpcfl.clock.durations import convert_to_seconds, describe_durations
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import RoundSchedule


@dataclass(frozen=True)
class Job:
    """Work of one client from one model of the server.

    Attributes:
        client: id of the client.
        version: version of the server's model at the start, computed in the round of
            this number; 0 is the model before round 1.
        begun: tick of the start.
        ended: tick of the end.
        share: share of the epochs of each local training; 1 for all.
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
        number: number of the round, from 1, and version of the resulting model.
        begun: tick of the beginning.
        ended: tick of the end.
        jobs: jobs with counted uploads, by ascending client; one per client.
        busy: ticks in which clients worked during the round, summed over clients.
        wasted: working ticks of jobs without a counted upload, in the round in which
            they fail.
        present: ticks in which clients were online during the round, summed over
            clients.
        lost: number of jobs without a counted upload.
        awaited: start versions, ascending, of clients whose uploads may count in a
            later round.
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
        """Return the number of the server's steps since each job's start, before this
        step.
        """
        return [self.number - 1 - job.version for job in self.jobs]

    def compute_numbers(self) -> dict[str, Any]:
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


class Timetable(ABC):
    """Simulation of the clients that yields consecutive steps."""

    def __init__(self, clients: Clients) -> None:
        self._time = clients.time
        self._draws = clients.draws
        self._duration = clients.duration
        self._online = OnlineClients(clients.availability, clients.draws.clients)
        self._tick = 0

    @abstractmethod
    def step(self) -> Step:
        """Return the next step. Raises UserError if no further step is possible."""


class Calendar(RoundSchedule):
    """Rounds of a synchronous server in virtual time.

    Attributes:
        duration: working time of each client.
    """

    def __init__(
        self, prepared: Prepared, clients: Clients, timetable: Timetable
    ) -> None:
        super().__init__(prepared, clients.draws)
        self.duration = clients.duration
        self._pace = np.array(self.duration.devices.pace, float)
        self._timetable = timetable
        self._steps: list[Step] = []
        # jobs by start version, each with its round
        self._started: dict[int, list[tuple[int, Job]]] = {}
        # number of counted uploads of each client after each step so far
        self._updates = [np.zeros(self.draws.clients, np.int64)]

    def step(self, number: int) -> Step:
        """Return the step of a round, from 1. Raises UserError if the round is
        impossible.
        """
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
        """Return jobs by start version and round, each with its round, sorted by
        client.

        Args:
            version: start version of the jobs.
            first: first round of the jobs.
            last: last round of the jobs.
        """
        self.step(last)
        jobs = []
        for number, job in self._started.get(version, []):
            if first <= number <= last:
                jobs.append((number, job))
        return sorted(jobs, key=lambda one: one[1].client)

    def get_cohort(self, number: int) -> np.ndarray:
        """Return the ids of the clients whose uploads count in a round."""
        return self.step(number).cohort

    def get_epoch_shares(self, number: int) -> np.ndarray | None:
        """Return the share of the epochs that each client of a round's cohort trains."""
        return list_epoch_shares(self.step(number).jobs)

    def get_times(self, number: int) -> dict[str, Any]:
        """Return the recorded times of a round.

        Entries ``clients/NAME`` are [clients and newcomers].
        """
        if number > self.config.rounds:
            now = convert_to_seconds(self.step(number - 1).ended)
            return {"time/seconds": now, "time/started": now}
        step = self.step(number)
        staleness = np.full(self.draws.clients, np.nan)
        staleness[step.cohort] = step.staleness
        updates = self._updates[number].astype(float)
        newcomers = np.full(self.config.newcomers.clients, np.nan)
        return {
            **step.compute_numbers(),
            "clients/staleness": np.append(staleness, newcomers),
            "clients/updates": np.append(updates, newcomers),
            "participation/jain": compute_jain(updates),
            "participation/gini": compute_gini(updates),
            "participation/pace": compute_correlation(updates, self._pace),
        }

    def list_decisions(self) -> dict[str, str]:
        """Return the counted work of a client, which determines all times."""
        work = self.duration.work
        return {
            "a client's work in a round is": f"{work.passes} passes, {work.floats_down} "
            f"floats down and {work.floats_up} floats up"
        }

    def describe(self) -> list[str]:
        """Return lines on the clients' work and devices."""
        return describe_durations(self.duration)

    def get_constants(self) -> dict[str, np.ndarray]:
        """Return the speed and links of each client."""
        devices = self.duration.devices
        return {
            "device_pace": np.array(devices.pace),
            "device_down": np.array(devices.down),
            "device_up": np.array(devices.up),
        }


def list_epoch_shares(jobs: Sequence[Job]) -> np.ndarray | None:
    """Return the share of the epochs of each job, [n]; None if all are 1."""
    shares = np.array([job.share for job in jobs])
    return None if (shares == 1).all() else shares


def compute_jain(counts: np.ndarray) -> float:
    """Return Jain's index (Σc)²/(M Σc²) of counts [M] (Jain, Chiu & Hawe, DEC-TR-301,
    1984).

    It is 1 for equal counts, 1/M if one client has all, and NaN if all counts are 0.
    """
    squares = float(np.square(counts).sum())
    return float(counts.sum()) ** 2 / (len(counts) * squares) if squares else np.nan


def compute_correlation(counts: np.ndarray, paces: np.ndarray) -> float:
    """Return Pearson's correlation of counts [M] with each client's time per sample
    [M].

    It is negative if faster clients have higher counts, and NaN if either is constant.
    """
    if counts.std() == 0 or paces.std() == 0:
        return np.nan
    return float(np.corrcoef(counts, paces)[0, 1])


def compute_gini(counts: np.ndarray) -> float:
    """Return the Gini coefficient of counts [M]: Σ_ij |c_i − c_j| / (2 M Σc).

    It is 0 for equal counts, and NaN if all counts are 0.
    """
    total = float(counts.sum())
    if not total:
        return np.nan
    # for ascending counts Σ_ij |c_i − c_j| is 2 Σ_i i (M − i) (c_(i+1) − c_(i)), a sum
    # of whole numbers
    clients = len(counts)
    gaps = np.diff(np.sort(counts))
    places = np.arange(1.0, clients)
    spread = float((places * (clients - places) * gaps).sum())
    return spread / (clients * total)
