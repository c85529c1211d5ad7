"""Steps of an asynchronous server, computed by simulating events in order (time.md §5,
§6).

Among the events of one tick, arrivals and losses come first, by ascending client. A
step is taken between them as soon as the buffer is full. Then all free places are
filled with clients that start from the newest model. A client with an upload in the
buffer does not start again before the step, so that no client counts twice in a step.
"""

import heapq
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from decimal import Decimal

import numpy as np

from hpcfl.clock import exact
from hpcfl.clock.availability import FOREVER
from hpcfl.clock.calendar import Job, Step, Timetable
from hpcfl.clock.clients import Clients
from hpcfl.clock.durations import SECOND, count_epochs
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Time
from hpcfl.simulation.round_schedule import Draws

DEFAULT_BUFFER = 10
# consecutive jobs per client without a counted upload after which the run fails
VAIN = 100
NEVER = -1  # last start version of clients that may start from any version


def count_places(time: Time, draws: Draws) -> int:
    """Return the largest number of clients that train at once."""
    return time.concurrency or draws.participation.count(draws.clients)


def count_buffered(time: Time, draws: Draws) -> int:
    """Return the number of arrivals in a step."""
    if time.buffer is not None:
        return time.buffer
    if time.rule == "fedasync":
        return 1
    return min(DEFAULT_BUFFER, count_places(time, draws))


@dataclass
class _Sum:
    """Sums over clients of ticks and losses before a step; fields as in ``Step``."""

    busy: int = 0
    wasted: int = 0
    present: int = 0
    lost: int = 0


@dataclass(order=True)
class _Flight:
    """A job in flight; jobs are sorted by end, then by client.

    Attributes:
        ended: tick of the end.
        client: id of the client.
        job: the job.
        is_useless: Whether the job has no result, because the client was lost at its
            start or goes offline before its end.
    """

    ended: int
    client: int
    job: Job = field(compare=False)
    is_useless: bool = field(compare=False)


class AsynchronousTimetable(Timetable):
    """Timetable of an asynchronous server; ``step`` returns consecutive steps."""

    def __init__(self, clients: Clients) -> None:
        """Set up the simulation. Raises UserError for a buffer that can never be full."""
        super().__init__(clients)
        time, draws = clients.time, clients.draws
        self._clients = draws.clients
        self._places = min(count_places(time, draws), self._clients)
        self._size = count_buffered(time, draws)
        if time.rule != "semi" and self._size > self._clients:
            raise UserError(
                f"time.buffer = {self._size}: must be at most {self._clients}, the number of "
                "clients"
            )
        self._period: int | None = None
        if time.rule == "semi":
            assert time.period is not None
            self._period = max(1, exact.round_to_whole(Decimal(time.period) * SECOND))
        self._begun = 0  # tick of the last step
        self._version = 0
        self._fillings = 0  # how often clients have started from the newest version
        self._flights: list[_Flight] = []  # a heap
        self._buffer: list[Job] = []
        self._idle = np.ones(self._clients, bool)  # neither training nor in the buffer
        # last start version of each client
        self._from = np.full(self._clients, NEVER)
        self._vain = 0  # consecutive jobs without a result
        self._sum = _Sum()
        self._steps = self._play()

    def step(self) -> Step:
        return next(self._steps)

    def _play(self) -> Iterator[Step]:
        """Yield the steps endlessly."""
        while True:
            self._fill()
            self._go_on()
            while self._flights and self._flights[0].ended == self._tick:
                self._end(heapq.heappop(self._flights))
                if self._period is None and len(self._buffer) == self._size:
                    yield self._take_step()
            if self._buffer and self._period and self._tick % self._period == 0:
                yield self._take_step()

    def _fill(self) -> None:
        """Start clients from the newest version in all free places."""
        free = self._places - len(self._flights)
        on = self._online.advance(self._tick)
        eligible = on & self._idle & (self._from != self._version)
        if not free or not eligible.any():
            return
        key: tuple[int, ...] = (self._version + 1,)
        if self._fillings:
            key = self._version + 1, self._fillings
        self._fillings += 1
        chosen = np.sort(self._draws.choose(eligible, free, key))
        staying = set(self._draws.drop_lost(chosen, key).tolist())
        shares = self._draws.draw_epoch_shares(chosen, key)
        for position, client in enumerate(chosen.tolist()):
            share = 1.0 if shares is None else float(shares[position])
            self._start(client, share, client not in staying)

    def _start(self, client: int, share: float, dropped: bool) -> None:
        """Start a client from the newest version at the current tick.

        Args:
            client: id of the client.
            share: share of the epochs that it trains.
            dropped: Whether its upload is lost.
        """
        done = count_epochs(share, self._duration.work.epochs)
        arrival = self._tick + self._duration.count_ticks(client, done)
        off = self._online.get_period_end(client)
        ended = min(arrival, off)
        job = Job(
            client=client,
            version=self._version,
            begun=self._tick,
            ended=ended,
            share=share,
        )
        heapq.heappush(
            self._flights, _Flight(ended, client, job, dropped or off < arrival)
        )
        self._idle[client] = False
        self._from[client] = self._version

    def _go_on(self) -> None:
        """Move the clock to the tick of the next event."""
        following = FOREVER
        if self._flights:
            following = self._flights[0].ended
        if len(self._flights) < self._places:
            waiting = self._idle & (self._from != self._version)
            following = min(following, self._online.find_next_online(waiting))
        if self._buffer and self._period:
            boundary = (self._tick // self._period + 1) * self._period
            following = min(following, boundary)
        if following >= FOREVER:
            fewer = f", or set rounds = {self._version}" if self._version else ""
            raise UserError(
                f"time.availability: after round {self._version} too few clients are "
                "available for a step of the server; lower time.buffer, or lengthen the "
                f"clients' availability{fewer}"
            )
        length = following - self._tick
        self._sum.busy += len(self._flights) * length
        self._sum.present += int(self._online.advance(self._tick).sum()) * length
        self._tick = following

    def _end(self, flight: _Flight) -> None:
        """Record the arrival of a client or its loss."""
        job = flight.job
        most = self._time.max_staleness
        stale = most is not None and self._version - job.version > most
        if not flight.is_useless and not stale:
            self._buffer.append(job)
            self._vain = 0
            return
        self._idle[job.client] = True
        if flight.is_useless:
            # The job has no result, so the client may start again from the same version.
            self._from[job.client] = NEVER
        self._sum.lost += 1
        self._sum.wasted += job.ended - job.begun
        self._vain += 1
        if self._vain > VAIN * self._clients:
            raise UserError(
                f"[time]: after round {self._version} no client finished its work in "
                f"{self._vain} attempts; lengthen the clients' availability, or drop fewer updates"
            )

    def _take_step(self) -> Step:
        """Return the server's step with the jobs in the buffer."""
        jobs = sorted(self._buffer, key=lambda job: job.client)
        self._version += 1
        self._fillings = 0
        self._buffer = []
        for job in jobs:
            self._idle[job.client] = True
        done, self._sum = self._sum, _Sum()
        step = Step(
            number=self._version,
            begun=self._begun,
            ended=self._tick,
            jobs=jobs,
            **asdict(done),
            awaited=self._list_awaited(),
        )
        self._begun = self._tick
        return step

    def _list_awaited(self) -> list[int]:
        """Return the start versions of clients whose uploads may still count."""
        most = self._time.max_staleness
        versions = set()
        for flight in self._flights:
            version = flight.job.version
            stale = most is not None and self._version - version > most
            if not flight.is_useless and not stale:
                versions.add(version)
        return sorted(versions)
