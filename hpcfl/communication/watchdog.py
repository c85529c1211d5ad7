"""Heartbeats between ranks; a job ends if a rank sends none.

Rank 0 and the workers send each other heartbeats while they work and while they wait.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from hpcfl.communication.communicator import HANG_AFTER

TAG = 77  # tag of heartbeats, the only messages between two ranks
LONGEST_PAUSE = 5.0  # seconds between two heartbeats of a working rank
NEVER = float("inf")


class Watchdog:
    """Times of the last heartbeats from other ranks.

    Rank 0 receives heartbeats from all workers, a worker from rank 0.
    """

    def __init__(self, mpi: Any, give_up: Callable[[int | None, float], NoReturn]):
        """Start the thread that monitors blocking calls.

        Args:
            mpi: module ``mpi4py.MPI``.
            give_up: function that ends the job. Its arguments are the silent rank, or
                None if it is unknown, and the allowed number of seconds.
        """
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self._give_up = give_up
        size = self._world.size
        self._peers = range(1, size) if self._world.rank == 0 else range(1)
        self._last_beat = 0.0  # time of the last heartbeat from this rank
        # Requests of heartbeats that may not have been received yet.
        self._pending: list[Any] = []
        # Numbers of heartbeats so far, by the other rank.
        self._sent = [0] * size
        self._received = [0] * size
        self._blocked_since = NEVER  # time at which the main thread began to block
        self.allow(HANG_AFTER)
        threading.Thread(target=self._guard, daemon=True).start()

    def allow(self, seconds: float) -> None:
        """Set the number of seconds after which a silent rank ends the job."""
        self._allowed = seconds
        self.record_all_alive()

    def record_all_alive(self) -> None:
        """Record that every rank is alive now."""
        self._heard = [time.monotonic()] * self._world.size

    def beat(self) -> None:
        """Send heartbeats unless the last ones are recent, and receive heartbeats."""
        now = time.monotonic()
        if now - self._last_beat < min(LONGEST_PAUSE, self._allowed / 10):
            return
        self._last_beat = now
        self._pending = [request for request in self._pending if not request.Test()]
        # New heartbeats are sent only after all earlier ones have been received.
        if not self._pending:
            for peer in self._peers:
                empty = [bytearray(1), self._mpi.BYTE]
                self._pending.append(self._world.Isend(empty, dest=peer, tag=TAG))
                self._sent[peer] += 1
        self._listen()

    def _listen(self) -> None:
        """Receive the heartbeats that have arrived."""
        status = self._mpi.Status()
        while self._world.Iprobe(tag=TAG, status=status):
            empty = [bytearray(1), self._mpi.BYTE]
            self._world.Recv(empty, source=status.source, tag=TAG)
            self._heard[status.source] = time.monotonic()
            self._received[status.source] += 1

    def check(self) -> None:
        """End the job if another rank is silent; waiting ranks call this repeatedly."""
        self.beat()
        now = time.monotonic()
        for peer in self._peers:
            if now - self._heard[peer] > self._allowed:
                self._give_up(peer, self._allowed)

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Mark a block of blocking calls. The job ends if they take too long."""
        self._blocked_since = time.monotonic()
        try:
            yield
        finally:
            self._blocked_since = NEVER

    def _guard(self) -> None:
        """End the job if a blocking call takes too long, in a separate thread.

        A rank in a blocking call cannot determine which rank is silent.
        """
        while time.monotonic() - self._blocked_since < self._allowed:
            time.sleep(min(1.0, self._allowed / 10))
        self._give_up(None, self._allowed)

    def receive_all(self) -> None:
        """Receive all outstanding heartbeats. Collective call.

        MPI requires this before it is finalised.
        """
        expected = self._world.alltoall(self._sent)
        while self._received != expected:
            self._listen()
        self._mpi.Request.Waitall(self._pending)
