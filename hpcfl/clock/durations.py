"""Devices of clients, and the duration of a client's work in a round.

Devices are a table of whole numbers that is drawn once. Sources of the defaults are in
time.md §2; durations are functions of counts (time.md §3).
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from hpcfl.clock import exact, traces
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness

SECOND = 10**6  # ticks per second; a tick is a microsecond
PICO = 10**12  # picoseconds per second
MEGA = 10**6
PICOSECONDS = 10**6  # picoseconds per tick
BITS = 32  # bits per float
# quantiles over clients, by heading
QUANTILES = {"fastest": 0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "slowest": 1}


@dataclass(frozen=True)
class Devices:
    """Devices of the clients.

    Attributes:
        pace: picoseconds in which each client trains on one sample, with an ordinary
            pass of this model.
        down: download speed of each client, bit/s.
        up: upload speed of each client, bit/s.
        latency: additional ticks per direction.
    """

    pace: list[int]
    down: list[int]
    up: list[int]
    latency: int


def draw_devices(time: Time, clients: int, seed: int, sample_ms: float) -> Devices:
    """Return the devices of clients.

    Args:
        time: section ``[time]``.
        clients: number of clients.
        seed: seed of the experiment.
        sample_ms: milliseconds in which the median device trains on a sample.

    Raises:
        UserError: A file of devices cannot be read.
    """
    latency = exact.round_to_whole(Decimal(time.latency) * SECOND)
    if time.devices == "file":
        assert time.file is not None
        return _read_devices(time.file, clients, latency)
    median = Decimal(sample_ms) * PICO / 1000
    paces = []
    for factor in _draw_factors(time, clients, seed):
        paces.append(max(1, exact.round_to_whole(median * factor)))
    down = _draw_links(time.down, time.down_sigma, clients, seed, way="down")
    up = _draw_links(time.up, time.up_sigma, clients, seed, way="up")
    return Devices(paces, down, up, latency)


def _draw_factors(time: Time, clients: int, seed: int) -> list[Decimal]:
    """Return the factor by which each client is slower than ``sample_ms``."""
    if time.devices == "zipf":
        return _draw_zipf_factors(clients, seed, Decimal(time.exponent))
    factors = []
    for client in range(clients):
        random = randomness.generator(seed, "device", client)
        if time.devices == "lognormal":
            factor = exact.draw_lognormal(random, time.sigma)
        elif time.devices == "pareto":
            # P(X > x) = x^−α for x ≥ 1; ``sample_ms`` belongs to the fastest device
            tail = exact.compute_power(
                exact.draw_uniform(random), -1 / Decimal(time.exponent)
            )
            factor = min(tail, Decimal(time.slowest))
        elif time.devices == "classes":
            factor = _find_class_factor(time, exact.draw_uniform(random))
        else:
            factor = Decimal(1)
        factors.append(factor)
    return factors


def _draw_zipf_factors(clients: int, seed: int, exponent: Decimal) -> list[Decimal]:
    """Return (r/⌈M/2⌉)^s for the place r of each client, from 1, in random order."""
    order = randomness.permutation(clients, seed, "device ranks")
    middle = Decimal(-(-clients // 2))
    factors = [Decimal(1)] * clients
    for place, client in enumerate(order.tolist(), start=1):
        factors[client] = exact.compute_power(place / middle, exponent)
    return factors


def _find_class_factor(time: Time, luck: Decimal) -> Decimal:
    """Return the factor of the class that contains ``luck`` in (0, 1]."""
    shares = [Decimal(share) for share in time.shares]
    left = luck * sum(shares)
    for share, factor in zip(shares, time.factors, strict=True):
        left -= share
        if left <= 0:
            return Decimal(factor)
    return Decimal(time.factors[-1])


def _draw_links(
    median: float, sigma: float, clients: int, seed: int, *, way: str
) -> list[int]:
    """Return the speed of each client's link in one direction, bit/s.

    Args:
        median: median speed, Mbit/s.
        sigma: standard deviation of the logarithm.
        clients: number of clients.
        seed: seed of the experiment.
        way: "down" or "up".
    """
    speeds = []
    for client in range(clients):
        random = randomness.generator(seed, "link", way, client)
        speed = Decimal(median) * MEGA * exact.draw_lognormal(random, sigma)
        speeds.append(max(1, exact.round_to_whole(speed)))
    return speeds


def _read_devices(path: str, clients: int, latency: int) -> Devices:
    """Return the devices in a file; clients use its rows in turn."""
    rows = traces.read_capacities(path)
    paces, speeds = [], []
    for client in range(clients):
        milliseconds, kilobits = rows[client % len(rows)]
        paces.append(max(1, exact.round_to_whole(milliseconds * PICO / 1000)))
        speeds.append(max(1, exact.round_to_whole(kilobits * 1000)))
    return Devices(paces, speeds, speeds, latency)


@dataclass(frozen=True)
class Work:
    """Work of a client in a round.

    Attributes:
        passes: number of ordinary passes over its samples, forward and backward, with
            the cost of its training with all epochs.
        epochs: number of epochs, at least 1.
        floats_down: number of floats that it receives.
        floats_up: number of floats that it sends.
    """

    passes: Fraction
    epochs: int
    floats_down: Fraction
    floats_up: Fraction


@dataclass(frozen=True)
class Duration:
    """Working time of each client.

    Attributes:
        devices: devices of the clients.
        work: work of a client in a round.
        samples: number of samples per epoch of each client, [clients].
    """

    devices: Devices
    work: Work
    samples: list[int]

    def count_ticks(self, client: int, epochs: int) -> int:
        """Return the ticks between the server's sending and the arrival of the client's
        upload.
        """
        done = Fraction(epochs, self.work.epochs)
        cost = self.samples[client] * self.work.passes * done
        training = _round_up(self.devices.pace[client] * cost / PICOSECONDS)
        return max(1, training + self.count_transfer_ticks(client))

    def count_transfer_ticks(self, client: int) -> int:
        """Return the ticks that the messages of a client take in both directions."""
        bits = BITS * SECOND
        down = _round_up(bits * self.work.floats_down / self.devices.down[client])
        up = _round_up(bits * self.work.floats_up / self.devices.up[client])
        return down + up + 2 * self.devices.latency

    def count_epochs_within(self, client: int, ticks: int) -> int:
        """Return the number of whole epochs that a client can train in ``ticks``."""
        epochs = self.work.epochs
        while epochs and self.count_ticks(client, epochs) > ticks:
            epochs -= 1
        return epochs


def count_epochs(share: float, epochs: int) -> int:
    """Return the number of epochs of a client that trains a ``share`` of them, at least
    one.

    The rounding is that of ``clients.training.Task.count_epochs``.
    """
    return min(epochs, int(share * epochs) + 1)


def find_share(done: int, epochs: int) -> float:
    """Return a share that ``count_epochs`` converts to ``done``: the middle of all such
    shares.
    """
    return (done - 0.5) / epochs


def _round_up(number: Any) -> int:
    """Return the smallest whole number that is not below an integer or fraction."""
    fraction = Fraction(number)
    return -(-fraction.numerator // fraction.denominator)


def convert_to_seconds(ticks: int) -> float:
    """Return ticks in seconds, rounded once."""
    return float(np.float64(ticks) / SECOND)


def describe_durations(duration: Duration) -> list[str]:
    """Return lines on a client's work in a round and on the clients' devices."""
    work = duration.work
    return [
        f"time: in a round a client makes {float(work.passes):.3g} passes over its samples, receives "
        f"{float(work.floats_down):,.0f} floats and sends {float(work.floats_up):,.0f}",
        *_describe_distributions(duration),
    ]


def _describe_distributions(duration: Duration) -> list[str]:
    """Return a line with quantiles over clients for each quantity that differs by
    client.
    """
    devices = duration.devices
    clients = range(len(devices.pace))
    travel = [
        convert_to_seconds(duration.count_transfer_ticks(client)) for client in clients
    ]
    whole = [
        convert_to_seconds(duration.count_ticks(client, duration.work.epochs))
        for client in clients
    ]
    # values by name; lower ones belong to faster clients
    quantities = {
        "ms a sample": [pace / 1e9 for pace in devices.pace],
        "Mbit/s down": [-down / 1e6 for down in devices.down],
        "Mbit/s up": [-up / 1e6 for up in devices.up],
        "s on the way": travel,
        "s at work": whole,
    }
    headings = "".join(f"{name:>9}" for name in QUANTILES)
    texts = [f"time: {'of the clients':<14}{headings}"]
    for name, numbers in quantities.items():
        quantiles = np.abs(np.quantile(numbers, list(QUANTILES.values())))
        cells = "".join(f"{number:9.3g}" for number in quantiles)
        texts.append(f"time: {name:<14}{cells}")
    return texts
