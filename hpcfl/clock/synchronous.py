"""Rounds of a server that waits for its clients up to a deadline (time.md §4)."""

from dataclasses import dataclass
from decimal import Decimal
from math import ceil

import numpy as np

from hpcfl.clock import exact
from hpcfl.clock.availability import FOREVER
from hpcfl.clock.calendar import Job, Step, Timetable
from hpcfl.clock.clients import Clients
from hpcfl.clock.durations import SECOND, count_epochs, find_share
from hpcfl.errors import UserError


@dataclass(frozen=True)
class _Request:
    """A selected client of a round.

    Attributes:
        job: job of the client.
        is_lost: Whether the client goes offline before the end of the job.
    """

    job: Job
    is_lost: bool


class SynchronousTimetable(Timetable):
    """Timetable of a synchronous server; ``step`` returns consecutive rounds."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._wanted = self._draws.participation.count(self._draws.clients)
        self._deadline: int | None = None
        if self._time.deadline is not None:
            deadline = Decimal(self._time.deadline) * SECOND
            self._deadline = exact.round_to_whole(deadline)
        self._number = 0

    def step(self) -> Step:
        self._number += 1
        started = self._tick
        online = self._wait_for_online_clients()
        tick = self._tick
        asked = [
            self._schedule_job(client, share)
            for client, share in self._draw_cohort(online)
        ]
        arriving = [one.job for one in asked if not one.is_lost]
        arriving.sort(key=lambda job: (job.ended, job.client))
        if self._deadline is not None:
            last = tick + self._deadline
            arriving = [job for job in arriving if job.ended <= last]
        counted = arriving[: self._wanted]
        end = self._end(counted, asked)
        busy = sum(min(one.job.ended, end) - tick for one in asked)
        # the tolerance 1e-9 is that of a cohort's size
        if len(counted) < self._time.least * self._wanted - 1e-9:
            counted = []
        useful = sum(job.ended - tick for job in counted)
        self._tick = end
        return Step(
            number=self._number,
            begun=started,
            ended=end,
            jobs=sorted(counted, key=lambda job: job.client),
            busy=busy,
            wasted=busy - useful,
            present=int(online.sum()) * (end - tick),
            lost=len(asked) - len(counted),
        )

    def _wait_for_online_clients(self) -> np.ndarray:
        """Wait until a client is online, and return whether each is, bool [clients]."""
        online = self._online.advance(self._tick)
        if online.any():
            return online
        next_tick = self._online.find_next_online(~online)
        if next_tick >= FOREVER:
            raise UserError(
                f"time.availability: no client is available in round {self._number} or later; "
                "set fewer rounds, or lengthen the clients' availability"
            )
        self._tick = next_tick
        return self._online.advance(next_tick)

    def _draw_cohort(self, online: np.ndarray) -> list[tuple[int, float]]:
        """Return the selected clients, each with its share of the epochs."""
        # the tolerance 1e-9 covers rounding: 1.1 · 10 exceeds 11 in floating point
        count = ceil(self._time.over_selection * self._wanted - 1e-9)
        key = (self._number,)
        drawn = self._draws.choose(online, count, key)
        chosen = np.sort(self._draws.drop_lost(drawn, key))
        shares = self._draws.draw_epoch_shares(chosen, key)
        if shares is None:
            shares = np.ones(len(chosen))
        return list(zip(chosen.tolist(), shares.tolist(), strict=True))

    def _schedule_job(self, client: int, share: float) -> _Request:
        """Return the job of a client that starts now.

        Args:
            client: id of the client.
            share: share of the epochs that it trains.
        """
        epochs = self._duration.work.epochs
        done = count_epochs(share, epochs)
        if self._time.late == "partial" and self._deadline is not None:
            fitting = self._duration.count_epochs_within(client, self._deadline)
            if 0 < fitting < done:
                done = fitting
                share = find_share(done, epochs)
        ended = self._tick + self._duration.count_ticks(client, done)
        off = self._online.get_period_end(client)
        job = Job(
            client=client,
            version=self._number - 1,
            begun=self._tick,
            ended=min(ended, off),
            share=share,
        )
        return _Request(job, off < ended)

    def _end(self, counted: list[Job], asked: list[_Request]) -> int:
        """Return the tick at which the server continues.

        It is the last awaited arrival, or the deadline, or the end of the last job.
        """
        if len(counted) == self._wanted:
            return counted[-1].ended
        if self._deadline is not None:
            return self._tick + self._deadline
        return max(one.job.ended for one in asked)
