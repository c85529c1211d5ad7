"""The calendar of a run: its steps, computed on request."""

from typing import Any, Protocol

import numpy as np

from hpcfl.clock.seconds import Duration, in_seconds
from hpcfl.clock.selection.base import LossReports
from hpcfl.clock.timetable import Job, Step
from hpcfl.errors import UserError


class Timetable(Protocol):
    """A source of consecutive steps."""

    def step(self) -> Step: ...


class Calendar:
    """All steps by the round's number.

    Attributes:
        duration: the working time of each client.
        timed: whether times are recorded; else the calendar only gives the
            participants.
        told: the clients' reported losses, if they decide participation. A step is then
            known only after the reports of the rounds before it. None if all steps are
            known beforehand.
    """

    def __init__(
        self,
        timetable: Timetable,
        duration: Duration,
        told: LossReports | None = None,
        timed: bool = True,
    ) -> None:
        self.duration = duration
        self.timed = timed
        self.told = told
        self._clients = clients = duration.devices.clients
        self._pace = np.array(duration.devices.pace, float)
        self._timetable = timetable
        self._steps: list[Step] = []
        # the jobs that started from each of the server's models, with their rounds
        self._started: dict[int, list[tuple[int, Job]]] = {}
        # after each step so far, how many of each client's uploads have counted
        self._updates = [np.zeros(clients, np.int64)]

    def is_known(self, number: int) -> bool:
        """Return whether the step of a round is known by now."""
        return self.told is None or number <= self.told.rounds + 1

    def hear(self, losses: np.ndarray) -> None:
        """Record the reported losses of the last known step's clients, [n] in their
        order.
        """
        assert self.told is not None
        cohort = self.step(self.told.rounds + 1).cohort
        self.told.hear(cohort, losses)

    def recall(self, rounds: int, ids: np.ndarray, losses: np.ndarray) -> None:
        """Record the reports of the first ``rounds`` of a run, as from
        ``LossReports.history``.

        Known reports are skipped. Raises UserError if the run had chosen other clients.
        """
        assert self.told is not None
        begin = 0
        for number in range(1, rounds + 1):
            cohort = self.step(number).cohort
            end = begin + len(cohort)
            if not np.array_equal(cohort, ids[begin:end]):
                raise UserError(
                    f"participation.select: in round {number} the run had chosen others than "
                    "would be chosen now; put back the selection that it began with, or "
                    "choose another --out or --fresh"
                )
            if number > self.told.rounds:
                self.told.hear(cohort, losses[begin:end])
            begin = end

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

    def started(self, version: int, first: int, last: int) -> list[tuple[int, Job]]:
        """Return the jobs that start from a version and belong to the given rounds.

        The rounds are ``first`` to ``last``; each job comes with its round, by client.
        """
        self.step(last)
        jobs = []
        for number, job in self._started.get(version, []):
            if first <= number <= last:
                jobs.append((number, job))
        return sorted(jobs, key=lambda one: one[1].client)

    def numbers(self, number: int) -> dict[str, Any]:
        """Return the recorded metrics of a round by name; {} if the calendar is not
        timed.

        ``clients/NAME`` [clients] is each client's own.
        """
        if not self.timed:
            return {}
        step = self.step(number)
        staleness = np.full(self._clients, np.nan)
        staleness[step.cohort] = step.staleness
        updates = self._updates[number].astype(float)
        return {
            **step.numbers(),
            "clients/staleness": staleness,
            "clients/updates": updates,
            "participation/jain": jain(updates),
            "participation/gini": gini(updates),
            "participation/pace": correlation(updates, self._pace),
        }

    def after(self, number: int) -> dict[str, Any]:
        """Return the recorded metrics of the scoring after the last round."""
        if not self.timed:
            return {}
        now = in_seconds(self.step(number).ended)
        return {"time/seconds": now, "time/started": now}


def jain(counts: np.ndarray) -> float:
    """Return Jain's index (Σc)²/(M Σc²) of counts [M] (Jain, Chiu & Hawe, DEC-TR-301,
    1984).

    It is 1 if all are equal, 1/M if one has all, and NaN if all are 0.
    """
    squares = float(np.square(counts).sum())
    return float(counts.sum()) ** 2 / (len(counts) * squares) if squares else np.nan


def correlation(counts: np.ndarray, paces: np.ndarray) -> float:
    """Return Pearson's correlation of counts [M] with each client's time [M].

    It is negative if fast clients have more counts, and NaN if either is constant.
    """
    if counts.std() == 0 or paces.std() == 0:
        return np.nan
    return float(np.corrcoef(counts, paces)[0, 1])


def gini(counts: np.ndarray) -> float:
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
