"""When clients are on: of each a sequence of periods, in ticks (time.md §2)."""

import bisect
from abc import ABC, abstractmethod
from decimal import Decimal

import numpy as np

from hpcfl.clock import exact, traces
from hpcfl.clock.devices import SECOND
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness

FOREVER = 1 << 62  # a tick that never comes
DAY = 24 * 3600 * SECOND
BLOCK = 16  # lengths of periods that are drawn together, an even number
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

    The k-th length of a client is keyed by client and k, so it is the same from whichever
    tick one asks first. They are drawn in blocks, of which only the begins are kept: one
    who is on for a second at a time has millions of periods.
    """

    def __init__(self, time: Time, seed: int) -> None:
        self._seed = seed
        self._on = Decimal(time.on) * SECOND
        self._off = Decimal(time.off) * SECOND
        self._on_first: dict[int, bool] = {}
        # of each client the ticks at which its blocks begin, as far as they are known
        self._begins: dict[int, list[int]] = {}
        # of each client the block that was drawn last: its number and its changes
        self._drawn: dict[int, tuple[int, np.ndarray]] = {}

    def period(self, client: int, tick: int) -> Period:
        begins = self._begins.setdefault(client, [0])
        while begins[-1] <= tick:
            begins.append(int(self._changes(client, len(begins) - 1)[-1]))
        block = bisect.bisect_right(begins, tick) - 1
        changes = self._changes(client, block).tolist()
        position = bisect.bisect_right(changes, tick)  # changes of it up to the tick
        # there is an even number of changes in the blocks before
        if self._is_on_first(client) == (position % 2 == 0):
            begin = changes[position - 1] if position else begins[block]
            return begin, changes[position]
        if position + 1 == len(changes):
            if block + 2 == len(begins):
                begins.append(int(self._changes(client, block + 1)[-1]))
            changes.append(int(self._changes(client, block + 1)[0]))
        return changes[position], changes[position + 1]

    def _is_on_first(self, client: int) -> bool:
        """Whether a client is on at the beginning."""
        if client not in self._on_first:
            random = randomness.generator(self._seed, "on first", client)
            share = self._on / (self._on + self._off)
            self._on_first[client] = exact.uniform(random) <= share
        return self._on_first[client]

    def _changes(self, client: int, block: int) -> np.ndarray:
        """The ticks of a client's changes in a block whose begin is known, int64
        [BLOCK].
        """
        if client in self._drawn and self._drawn[client][0] == block:
            return self._drawn[client][1]
        means = [self._on, self._off]
        if not self._is_on_first(client):
            means.reverse()
        uniforms = 1 - randomness.uniform(
            self._seed, "period", client, skip=block * BLOCK, count=BLOCK
        )
        lengths = exact.exponentials(uniforms, means * (BLOCK // 2))
        changes = np.cumsum(np.maximum(lengths, 1)) + self._begins[client][block]
        self._drawn[client] = block, changes
        result: np.ndarray = changes
        return result


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
