"""The clients' devices: computing speed and links, a table of whole numbers drawn once.

The sources of the defaults are in time.md §2.
"""

from dataclasses import dataclass
from decimal import Decimal

from hpcfl.clock import exact, traces
from hpcfl.experiment.sections import Time
from hpcfl.rows import randomness

SECOND = 10**6  # ticks: a tick is a microsecond
PICO = 10**12  # of a second
MEGA = 10**6


@dataclass(frozen=True)
class Devices:
    """The clients' devices.

    Attributes:
        pace: the picoseconds of each client's training on one sample, an ordinary pass
            of this model.
        down, up: the speed of its links, bit/s.
        latency: additional ticks each way.
    """

    pace: list[int]
    down: list[int]
    up: list[int]
    latency: int

    @property
    def clients(self) -> int:
        return len(self.pace)


def draw(time: Time, clients: int, seed: int, sample_ms: float) -> Devices:
    """Return the devices of so many clients.

    Args:
        sample_ms: milliseconds of the median device's training on a sample.

    Raises:
        UserError: a file of devices cannot be read.
    """
    latency = exact.whole(Decimal(time.latency) * SECOND)
    if time.devices == "file":
        assert time.file is not None
        return _of_file(time.file, clients, latency)
    median = Decimal(sample_ms) * PICO / 1000
    paces = []
    for factor in _factors(time, clients, seed):
        paces.append(max(1, exact.whole(median * factor)))
    down = _links(time.down, time.down_sigma, clients, seed, "down")
    up = _links(time.up, time.up_sigma, clients, seed, "up")
    return Devices(paces, down, up, latency)


def _factors(time: Time, clients: int, seed: int) -> list[Decimal]:
    """Return the factor by which each client is slower than ``sample_ms``."""
    if time.devices == "zipf":
        return _by_rank(clients, seed, Decimal(time.exponent))
    factors = []
    for client in range(clients):
        random = randomness.generator(seed, "device", client)
        if time.devices == "lognormal":
            factor = exact.lognormal(random, time.sigma)
        elif time.devices == "pareto":
            # P(X > x) = x^−α for x ≥ 1; ``sample_ms`` is that of the fastest
            tail = exact.power(exact.uniform(random), -1 / Decimal(time.exponent))
            factor = min(tail, Decimal(time.slowest))
        elif time.devices == "classes":
            factor = _of_class(time, exact.uniform(random))
        else:
            factor = Decimal(1)
        factors.append(factor)
    return factors


def _by_rank(clients: int, seed: int, exponent: Decimal) -> list[Decimal]:
    """Return (r/⌈M/2⌉)^s of each client's rank r, from 1, in a random order."""
    order = randomness.permutation(clients, seed, "device ranks")
    middle = Decimal(-(-clients // 2))
    factors = [Decimal(1)] * clients
    for rank, client in enumerate(order.tolist(), start=1):
        factors[client] = exact.power(rank / middle, exponent)
    return factors


def _of_class(time: Time, luck: Decimal) -> Decimal:
    """Return the factor of the class that contains ``luck`` in (0, 1]."""
    shares = [Decimal(share) for share in time.shares]
    left = luck * sum(shares)
    for share, factor in zip(shares, time.factors, strict=True):
        left -= share
        if left <= 0:
            return Decimal(factor)
    return Decimal(time.factors[-1])


def _links(median: float, sigma: float, clients: int, seed: int, way: str) -> list[int]:
    """Return the bit/s of each client's link one way; ``median`` is in Mbit/s."""
    speeds = []
    for client in range(clients):
        random = randomness.generator(seed, "link", way, client)
        speed = Decimal(median) * MEGA * exact.lognormal(random, sigma)
        speeds.append(max(1, exact.whole(speed)))
    return speeds


def _of_file(path: str, clients: int, latency: int) -> Devices:
    """Return the devices in a file; clients take its rows in turn."""
    rows = traces.capacities(path)
    paces, speeds = [], []
    for client in range(clients):
        milliseconds, kilobits = rows[client % len(rows)]
        paces.append(max(1, exact.whole(milliseconds * PICO / 1000)))
        speeds.append(max(1, exact.whole(kilobits * 1000)))
    return Devices(paces, speeds, speeds, latency)
