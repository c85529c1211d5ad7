"""The working time of a client in a round, a function of counts (time.md §3)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hpcfl.clock.devices import SECOND, Devices

PICOSECONDS = 10**6  # in a tick
BITS = 32  # of a float


@dataclass(frozen=True)
class Work:
    """The work of a client in a round.

    Attributes:
        passes: ordinary passes over its samples, forward and backward, that cost as
            much as all of its training with all epochs.
        epochs: the number of epochs, at least 1.
        floats_down, floats_up: the floats that it receives and sends.
    """

    passes: Fraction
    epochs: int
    floats_down: Fraction
    floats_up: Fraction


@dataclass(frozen=True)
class Duration:
    """The working time of each client.

    Attributes:
        samples: int [clients], the samples of an epoch of each client.
    """

    devices: Devices
    work: Work
    samples: list[int]

    def ticks(self, client: int, epochs: int) -> int:
        """Return the ticks from the server's sending until the client's upload arrives."""
        done = Fraction(epochs, self.work.epochs)
        cost = self.samples[client] * self.work.passes * done
        training = _ceil(self.devices.pace[client] * cost / PICOSECONDS)
        return max(1, training + self.travel(client))

    def travel(self, client: int) -> int:
        """Return the ticks that the messages of a client take both ways."""
        bits = BITS * SECOND
        down = _ceil(bits * self.work.floats_down / self.devices.down[client])
        up = _ceil(bits * self.work.floats_up / self.devices.up[client])
        return down + up + 2 * self.devices.latency

    def epochs_within(self, client: int, ticks: int) -> int:
        """Return the number of whole epochs that a client can do in so many ticks."""
        epochs = self.work.epochs
        while epochs and self.ticks(client, epochs) > ticks:
            epochs -= 1
        return epochs


def epochs_of(share: float, epochs: int) -> int:
    """Return the epochs of a client that does a ``share`` of them, at least one.

    The rounding is that of ``clients.training.Task.epochs_of``.
    """
    return min(epochs, int(share * epochs) + 1)


def share_of(done: int, epochs: int) -> float:
    """Return a share that ``epochs_of`` converts to ``done``, the middle of all such
    shares.
    """
    return (done - 0.5) / epochs


def _ceil(number: Any) -> int:
    """Return the least whole number not below an integer or a fraction."""
    fraction = Fraction(number)
    return -(-fraction.numerator // fraction.denominator)


def in_seconds(ticks: int) -> float:
    """Return ticks in seconds, rounded once."""
    return float(np.float64(ticks) / SECOND)
