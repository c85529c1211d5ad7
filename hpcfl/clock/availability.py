"""The availability of clients: a sequence of periods for each, in ticks (time.md §2)."""

import bisect
from abc import ABC, abstractmethod
from decimal import Decimal

import numpy as np

from hpcfl.clock import exact, traces
from hpcfl.clock.durations import SECOND
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness

FOREVER = 1 << 62  # a tick that never comes
DAY = 24 * 3600 * SECOND
BLOCK = 16  # lengths of periods that are drawn together, an even number
Period = tuple[int, int]  # a client is on from the first tick on, until the second


class Availability(ABC):
    """The periods in which each client is on.

    The interface returns periods and not states, because a clock that jumps between
    events needs the tick of the next change.
    """

    @abstractmethod
    def period(self, client: int, tick: int) -> Period:
        """Return the period in which a client is on at a tick, or the next one.

        It ends after the tick. Without a further period it begins FOREVER.
        """


class Daily(Availability):
    """Clients that are on for the same hours of every day, each from its own hour."""

    def __init__(self, offsets: list[int], length: int) -> None:
        """Set the tick of a day at which each client comes on, and the length of its
        period.

        The length is at most a day; with a day clients are always on.
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
    """Alternating periods on and off with exponential lengths.

    Client and k key the k-th length of a client, so it is the same for any order of
    queries. Lengths are drawn in blocks, of which only the begins are stored: a client
    that is on for a second at a time has millions of periods.
    """

    def __init__(self, time: Time, seed: int) -> None:
        self._seed = seed
        self._on = Decimal(time.on) * SECOND
        self._off = Decimal(time.off) * SECOND
        self._on_first: dict[int, bool] = {}
        # the known begins of each client's blocks, in ticks
        self._begins: dict[int, list[int]] = {}
        # the last drawn block of each client: its number and its changes
        self._drawn: dict[int, tuple[int, np.ndarray]] = {}

    def period(self, client: int, tick: int) -> Period:
        begins = self._begins.setdefault(client, [0])
        while begins[-1] <= tick:
            begins.append(int(self._changes(client, len(begins) - 1)[-1]))
        block = bisect.bisect_right(begins, tick) - 1
        changes = self._changes(client, block).tolist()
        position = bisect.bisect_right(changes, tick)  # changes of it up to the tick
        # the earlier blocks have an even number of changes
        if self._is_on_first(client) == (position % 2 == 0):
            begin = changes[position - 1] if position else begins[block]
            return begin, changes[position]
        if position + 1 == len(changes):
            if block + 2 == len(begins):
                begins.append(int(self._changes(client, block + 1)[-1]))
            changes.append(int(self._changes(client, block + 1)[0]))
        return changes[position], changes[position + 1]

    def _is_on_first(self, client: int) -> bool:
        """Return whether a client is on at the beginning."""
        if client not in self._on_first:
            random = randomness.generator(self._seed, "on first", client)
            share = self._on / (self._on + self._off)
            self._on_first[client] = exact.draw_uniform(random) <= share
        return self._on_first[client]

    def _changes(self, client: int, block: int) -> np.ndarray:
        """Return the ticks of a client's changes in a block with known begin, int64
        [BLOCK].
        """
        if client in self._drawn and self._drawn[client][0] == block:
            return self._drawn[client][1]
        means = [self._on, self._off]
        if not self._is_on_first(client):
            means.reverse()
        uniforms = 1 - randomness.uniform(
            self._seed,
            "period",
            client,
            skip=block * BLOCK,
            count=BLOCK,
        )
        lengths = exact.draw_exponentials(uniforms, means * (BLOCK // 2))
        changes = np.cumsum(np.maximum(lengths, 1)) + self._begins[client][block]
        self._drawn[client] = block, changes
        result: np.ndarray = changes
        return result


class Traced(Availability):
    """Periods from a file, which repeats after its end."""

    def __init__(self, rows: list[tuple[list[Period], int]]) -> None:
        """Set each row's periods and the length of the file's time."""
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


def make_availability(time: Time, clients: int, seed: int) -> Availability:
    """Return the availability of so many clients. Raises UserError for an unreadable
    file.
    """
    if time.availability == "day":
        offsets = [_draw_offset(time, seed, client) for client in range(clients)]
        length = exact.round_to_whole(Decimal(time.hours) * 3600 * SECOND)
        return Daily(offsets, length)
    if time.availability == "markov":
        return Markov(time, seed)
    if time.availability == "file":
        assert time.availability_file is not None
        return Traced(traces.read_activities(time.availability_file, SECOND))
    return Daily([], DAY)


def _draw_offset(time: Time, seed: int, client: int) -> int:
    """Return the tick of a day at which a client comes on.

    The tick is uniform over the day, or one of so many time zones.
    """
    random = randomness.generator(seed, "hour", client)
    if time.zones is None:
        return int(random.integers(DAY))
    return int(random.integers(time.zones)) * (DAY // time.zones)


class OnlineClients:
    """The clients that are on at a tick, for ascending ticks, and the next change."""

    def __init__(self, availability: Availability, clients: int) -> None:
        self._availability = availability
        # the current or next period of each client
        self._begin = np.zeros(clients, np.int64)
        self._end = np.zeros(clients, np.int64)
        self._tick = 0

    def advance(self, tick: int) -> np.ndarray:
        """Return whether each client is on, bool [clients]; ticks never descend between
        calls.
        """
        self._tick = tick
        for client in np.flatnonzero(self._end <= tick).tolist():
            begin, end = self._availability.period(client, tick)
            self._begin[client] = begin
            self._end[client] = end
        on: np.ndarray = self._begin <= tick
        return on

    def period_end(self, client: int) -> int:
        """Return the tick at which a client that is on goes off."""
        return int(self._end[client])

    def next_on(self, among: np.ndarray) -> int:
        """Return the next tick after the last call's at which one of the clients comes
        on.

        among: bool [clients]. The result is FOREVER without such a tick.
        """
        coming = self._begin[among & (self._begin > self._tick)]
        return int(coming.min()) if len(coming) else FOREVER
