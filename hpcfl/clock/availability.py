"""Availability of clients: a sequence of online periods for each, in ticks (time.md
§2).
"""

import bisect
from abc import ABC, abstractmethod
from decimal import Decimal

import numpy as np

from hpcfl.clock import exact, traces
from hpcfl.clock.durations import SECOND
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness

FOREVER = 1 << 62  # tick after the end of any run
DAY = 24 * 3600 * SECOND
BLOCK = 16  # number of period lengths drawn together, even
Period = tuple[int, int]  # online period: its first tick, and the tick after its last


class Availability(ABC):
    """Online periods of each client.

    The interface returns periods and not states, because a clock that jumps between
    events needs the tick of the next change.
    """

    @abstractmethod
    def find_period(self, client: int, tick: int) -> Period:
        """Return the online period of a client that contains a tick, or the next one.

        It ends after the tick. Without a further period it begins FOREVER.
        """


class Daily(Availability):
    """Clients that are online for the same number of hours every day, each from a
    different hour.
    """

    def __init__(self, offsets: list[int], length: int) -> None:
        """Set the daily periods.

        Args:
            offsets: tick of the day at which each client comes online.
            length: length of the period in ticks; clients with DAY are always online.
        """
        self._offsets = offsets
        self._length = length

    def find_period(self, client: int, tick: int) -> Period:
        if self._length >= DAY:
            return 0, FOREVER
        since = (tick - self._offsets[client]) % DAY
        begin = tick - since
        if since >= self._length:
            begin += DAY
        return begin, begin + self._length


class Markov(Availability):
    """Alternating online and offline periods with exponential lengths.

    The k-th length of a client depends on the client and k only, so it is the same in
    any order of queries. Lengths are drawn in blocks, of which only the beginnings are
    stored: a client with periods of a second has millions of them.
    """

    def __init__(self, time: Time, seed: int) -> None:
        self._seed = seed
        self._on = Decimal(time.on) * SECOND
        self._off = Decimal(time.off) * SECOND
        self._on_first: dict[int, bool] = {}
        # known beginnings of each client's blocks, in ticks
        self._begins: dict[int, list[int]] = {}
        # number and changes of each client's last drawn block
        self._drawn: dict[int, tuple[int, np.ndarray]] = {}

    def find_period(self, client: int, tick: int) -> Period:
        begins = self._begins.setdefault(client, [0])
        while begins[-1] <= tick:
            begins.append(int(self._draw_changes(client, len(begins) - 1)[-1]))
        block = bisect.bisect_right(begins, tick) - 1
        changes = self._draw_changes(client, block).tolist()
        position = bisect.bisect_right(changes, tick)  # changes in the block up to tick
        # earlier blocks have an even number of changes
        if self._is_on_first(client) == (position % 2 == 0):
            begin = changes[position - 1] if position else begins[block]
            return begin, changes[position]
        if position + 1 == len(changes):
            if block + 2 == len(begins):
                begins.append(int(self._draw_changes(client, block + 1)[-1]))
            changes.append(int(self._draw_changes(client, block + 1)[0]))
        return changes[position], changes[position + 1]

    def _is_on_first(self, client: int) -> bool:
        """Return whether a client is online at tick 0."""
        if client not in self._on_first:
            random = randomness.generator(self._seed, "on first", client)
            share = self._on / (self._on + self._off)
            self._on_first[client] = exact.draw_uniform(random) <= share
        return self._on_first[client]

    def _draw_changes(self, client: int, block: int) -> np.ndarray:
        """Return the ticks of a client's changes in a block, int64 [BLOCK].

        The beginning of the block must be known.
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
    """Periods from a file, repeated after its end."""

    def __init__(self, rows: list[tuple[list[Period], int]]) -> None:
        """Set the periods and the length of the file's time for each row."""
        self._rows: list[tuple[list[Period], int]] = []
        for periods, length in rows:
            self._rows.append((_join_repetitions(periods, length), length))

    def find_period(self, client: int, tick: int) -> Period:
        periods, length = self._rows[client % len(self._rows)]
        if not periods:
            return FOREVER, FOREVER
        if periods == [(0, length)]:
            return 0, FOREVER
        first, first_end = periods[0]
        times, since = divmod(tick - first, length)
        for begin, end in periods:
            if end - first > since:
                return times * length + begin, times * length + end
        return (times + 1) * length + first, (times + 1) * length + first_end


def _join_repetitions(periods: list[Period], length: int) -> list[Period]:
    """Return periods of which none ends where the next repetition continues it.

    Args:
        periods: ascending periods from 0 to ``length``.
        length: tick at which the periods repeat.
    """
    if len(periods) < 2 or periods[0][0] > 0 or periods[-1][1] < length:
        return periods
    (_, end), *others, (begin, _) = periods
    return [*others, (begin, length + end)]


def make_availability(time: Time, clients: int, seed: int) -> Availability:
    """Return the availability of clients.

    Args:
        time: section ``[time]``.
        clients: number of clients.
        seed: seed of the experiment.

    Raises:
        UserError: The file cannot be read.
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
    """Return the tick of the day at which a client comes online.

    It is uniform over the day, or over ``time.zones`` time zones.
    """
    random = randomness.generator(seed, "hour", client)
    if time.zones is None:
        return int(random.integers(DAY))
    return int(random.integers(time.zones)) * (DAY // time.zones)


class OnlineClients:
    """Online clients at ascending ticks, and the tick of the next change."""

    def __init__(self, availability: Availability, clients: int) -> None:
        self._availability = availability
        # current or next period of each client
        self._begin = np.zeros(clients, np.int64)
        self._end = np.zeros(clients, np.int64)
        self._tick = 0

    def advance(self, tick: int) -> np.ndarray:
        """Return whether each client is online at a tick, bool [clients].

        Ticks must not decrease between calls.
        """
        self._tick = tick
        for client in np.flatnonzero(self._end <= tick).tolist():
            begin, end = self._availability.find_period(client, tick)
            self._begin[client] = begin
            self._end[client] = end
        on: np.ndarray = self._begin <= tick
        return on

    def get_period_end(self, client: int) -> int:
        """Return the tick at which an online client goes offline."""
        return int(self._end[client])

    def find_next_online(self, among: np.ndarray) -> int:
        """Return the next tick after the last call at which one of the clients comes
        online.

        The result is FOREVER without such a tick.

        Args:
            among: Whether each client is considered, bool [clients].
        """
        coming = self._begin[among & (self._begin > self._tick)]
        return int(coming.min()) if len(coming) else FOREVER
