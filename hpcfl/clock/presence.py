"""Who is on at a tick that only moves forwards, and when somebody comes on next."""

import numpy as np

from hpcfl.clock.availability import FOREVER, Availability


class Presence:
    """All clients at one tick."""

    def __init__(self, availability: Availability, clients: int) -> None:
        self._availability = availability
        # of each client the period in which it is on, or will be next
        self._begin = np.zeros(clients, np.int64)
        self._end = np.zeros(clients, np.int64)
        self._tick = 0

    def at(self, tick: int) -> np.ndarray:
        """Who is on, bool [clients]. ``tick`` is not before that of the last call."""
        self._tick = tick
        for client in np.flatnonzero(self._end <= tick).tolist():
            begin, end = self._availability.period(client, tick)
            self._begin[client] = begin
            self._end[client] = end
        on: np.ndarray = self._begin <= tick
        return on

    def until(self, client: int) -> int:
        """The tick at which a client that is on goes off."""
        return int(self._end[client])

    def next_on(self, among: np.ndarray) -> int:
        """The first tick after the last call's at which one of some clients comes on,
        bool [clients]; FOREVER where none does.
        """
        coming = self._begin[among & (self._begin > self._tick)]
        return int(coming.min()) if len(coming) else FOREVER
