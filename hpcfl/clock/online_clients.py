"""The clients that are on at a tick, for ascending ticks, and the next change."""

import numpy as np

from hpcfl.clock.availability import FOREVER, Availability


class OnlineClients:
    """The state of all clients at one tick."""

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
