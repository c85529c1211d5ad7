"""For how long a client is at work in a round: a function of counts (time.md §3)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hpcfl.clock.devices import SECOND, Devices

PICOSECONDS = 10**6  # in a tick
BITS = 32  # of a float


@dataclass(frozen=True)
class Work:
    """What a client does in a round.

    Attributes:
        passes: ordinary passes over its samples, forward and backward, that cost as
            much as all of its training, if it does all epochs.
        epochs: how many these are, at least 1.
        floats_down, floats_up: what it gets and sends.
    """

    passes: Fraction
    epochs: int
    floats_down: Fraction
    floats_up: Fraction


@dataclass(frozen=True)
class Duration:
    """How long each client is at work.

    Attributes:
        samples: int [clients], what an epoch uses of each client's.
    """

    devices: Devices
    work: Work
    samples: list[int]

    def ticks(self, client: int, epochs: int) -> int:
        """The ticks from when the server sends until it has the client's upload."""
        done = Fraction(epochs, self.work.epochs)
        cost = self.samples[client] * self.work.passes * done
        training = _ceil(self.devices.pace[client] * cost / PICOSECONDS)
        return max(1, training + self.travel(client))

    def travel(self, client: int) -> int:
        """The ticks that the messages of a client take both ways."""
        bits = BITS * SECOND
        down = _ceil(bits * self.work.floats_down / self.devices.down[client])
        up = _ceil(bits * self.work.floats_up / self.devices.up[client])
        return down + up + 2 * self.devices.latency

    def epochs_within(self, client: int, ticks: int) -> int:
        """How many whole epochs a client can do in so many ticks, 0 where not even
        one.
        """
        epochs = self.work.epochs
        while epochs and self.ticks(client, epochs) > ticks:
            epochs -= 1
        return epochs


def epochs_of(share: float, epochs: int) -> int:
    """How many epochs a client does that does a ``share`` of them: at least one, as
    ``clients.training.Task.epochs_of`` has it.
    """
    return min(epochs, int(share * epochs) + 1)


def share_of(done: int, epochs: int) -> float:
    """A share of the epochs of which ``epochs_of`` makes ``done``, the middle of those
    that do.
    """
    return (done - 0.5) / epochs


def _ceil(number: Any) -> int:
    """The least whole number that is not below an integer or a fraction."""
    fraction = Fraction(number)
    return -(-fraction.numerator // fraction.denominator)


def in_seconds(ticks: int) -> float:
    """Ticks in seconds, rounded once."""
    return float(np.float64(ticks) / SECOND)
