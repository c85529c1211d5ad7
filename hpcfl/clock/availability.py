"""When clients are on: of each a sequence of periods, in ticks (time.md §2)."""

import bisect
from abc import ABC, abstractmethod
from decimal import Decimal

from hpcfl.clock import exact, traces
from hpcfl.clock.devices import SECOND
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness

FOREVER = 1 << 62  # a tick that never comes
DAY = 24 * 3600 * SECOND
Period = tuple[int, int]  # a client is on from the first tick on, until the second


class Availability(ABC):
    """When each client is on.

    A period is asked for, not whether a client is on at a tick: who jumps from one
    event to the next must know when to look again.
    """

    @abstractmethod
    def period(self, client: int, tick: int) -> Period:
        """The period in which a client is on at a tick, or the next one after it.

        It ends after the tick. Where there is none left it begins FOREVER.
        """


class Always(Availability):
    """Everybody is on."""

    def period(self, client: int, tick: int) -> Period:
        return 0, FOREVER


class Daily(Availability):
    """Each client is on for the same hours of every day, from its own hour on."""

    def __init__(self, offsets: list[int], length: int) -> None:
        """``offsets``: of each client the tick of a day at which it comes on; it stays
        for ``length`` ticks, at most a day.
        """
        self._offsets = offsets
        self._length = length

    def period(self, client: int, tick: int) -> Period:
        if self._length >= DAY:
            return 0, FOREVER
        since = (tick - self._offsets[client]) % DAY
        begin = tick - since
        if since >= self._length:
            begin += DAY
        return begin, begin + self._length


class Markov(Availability):
    """Periods on and off in turn, whose lengths are exponential.

    The k-th change of a client is keyed by client and k, so it is the same from
    whichever tick one asks first.
    """

    def __init__(self, time: Time, seed: int) -> None:
        self._seed = seed
        self._on = Decimal(time.on) * SECOND
        self._off = Decimal(time.off) * SECOND
        # of each client whether it is on first, and the ticks of its changes so far
        self._changes: dict[int, tuple[bool, list[int]]] = {}

    def period(self, client: int, tick: int) -> Period:
        on_first, changes = self._until(client, tick)
        position = bisect.bisect_right(changes, tick)  # changes up to the tick
        is_on = on_first == (position % 2 == 0)
        if not is_on:
            position += 1
        begin = changes[position - 1] if position else 0
        return begin, changes[position]

    def _until(self, client: int, tick: int) -> tuple[bool, list[int]]:
        """A client's changes until two after the tick, which a period may need."""
        if client not in self._changes:
            random = randomness.generator(self._seed, "on first", client)
            share = self._on / (self._on + self._off)
            self._changes[client] = exact.uniform(random) <= share, []
        on_first, changes = self._changes[client]
        while len(changes) < 2 or changes[-2] <= tick:
            number = len(changes)
            mean = self._on if on_first == (number % 2 == 0) else self._off
            random = randomness.generator(self._seed, "period", client, number)
            length = max(1, exact.whole(mean * exact.exponential(random)))
            changes.append((changes[-1] if changes else 0) + length)
        return on_first, changes


class Traced(Availability):
    """Periods of a file, which begins anew when its time is over."""

    def __init__(self, rows: list[tuple[list[Period], int]]) -> None:
        """``rows``: of each client in the file its periods, and the file's time."""
        self._rows = rows

    def period(self, client: int, tick: int) -> Period:
        periods, length = self._rows[client % len(self._rows)]
        if not periods:
            return FOREVER, FOREVER
        times, since = divmod(tick, length)
        for begin, end in periods:
            if end > since:
                return times * length + begin, times * length + end
        begin, end = periods[0]
        return (times + 1) * length + begin, (times + 1) * length + end


def of(time: Time, clients: int, seed: int) -> Availability:
    """When so many clients are on. Raises UserError where a file cannot be read."""
    if time.availability == "day":
        offsets = [_offset(time, seed, client) for client in range(clients)]
        length = exact.whole(Decimal(time.hours) * 3600 * SECOND)
        return Daily(offsets, length)
    if time.availability == "markov":
        return Markov(time, seed)
    if time.availability == "file":
        assert time.availability_file is not None
        return Traced(traces.activities(time.availability_file, SECOND))
    return Always()


def _offset(time: Time, seed: int, client: int) -> int:
    """The tick of a day at which a client comes on, at any time of the day or in one of
    so many time zones.
    """
    random = randomness.generator(seed, "hour", client)
    if time.zones is None:
        return int(random.integers(DAY))
    return int(random.integers(time.zones)) * (DAY // time.zones)
