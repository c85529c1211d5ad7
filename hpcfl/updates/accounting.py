"""The privacy loss ε of a run, computed by ``dp-accounting``.

Each client's update is clipped to norm C, and noise with standard deviation σC is added
to the sum. The type of cohort determines the event of a round (updates.md, U1). The
package's warnings about excluded orders go to the debug log.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from hpcfl.errors import UserError

LOWEST, GUESS = 0.3, 1.0  # multipliers at the start of a calibration
# smallest multiplier with privacy loss distributions, whose memory grows as 1/σ²
LEAST_OF_PLD = 0.1
PRECISION = 1_000_000  # a calibrated multiplier is rounded up to 1/PRECISION


@dataclass(frozen=True)
class Guarantee:
    """Sampling and accountant of a run.

    Attributes:
        cohort: "poisson" or "fixed" sampling, or "local" for noise added by each
            client.
        clients: Total number of clients.
        size: Expected number of clients in a round.
        accountant: Method of composition.
        delta: Probability δ.
    """

    cohort: Literal["poisson", "fixed", "local"]
    clients: int
    size: float
    accountant: Literal["rdp", "pld"]
    delta: float

    @property
    def replaces_one(self) -> bool:
        """Return whether neighbouring data sets differ in one replaced client;
        otherwise one client is added or removed.
        """
        return self.cohort == "fixed" and self.size < self.clients

    def describe_sampling(self) -> str:
        """Return a description of the sampling and the adjacency."""
        if self.cohort == "local":
            return (
                "noise on each client, no amplification; adjacency: replace one upload"
            )
        if self.cohort == "poisson":
            rate = self.size / self.clients
            return f"Poisson with q = {rate:g}; adjacency: add or remove one client"
        if not self.replaces_one:
            return "all clients in each round; adjacency: add or remove one client"
        return (
            f"{self.size:g} of {self.clients} clients without replacement; adjacency: "
            "replace one client"
        )

    def compute_epsilon(self, sigma: float, rounds: int) -> float:
        """Return ε after a number of rounds with the noise multiplier σ.

        With local noise, ``rounds`` counts the rounds in which a client takes part.
        """
        if self.accountant == "pld" and sigma and rounds:
            return _compose(self, sigma, rounds)
        return self.compose({sigma: rounds} if rounds else {})

    def compose(self, rounds: Mapping[float, int]) -> float:
        """Return ε by Rényi divergences after rounds with several noise multipliers.

        Args:
            rounds: Number of rounds by noise multiplier.
        """
        if not rounds:
            return 0.0
        if not all(rounds):
            return math.inf
        orders, total = None, 0.0
        for sigma, count in rounds.items():
            orders, divergences = _find_curve(self, sigma)
            total = total + count * divergences
        found = import_library().rdp.compute_epsilon(orders, total, self.delta)
        return float(found[0])

    def calibrate(self, epsilon: float, rounds: Mapping[float, int]) -> float:
        """Return the least σ with a cost of at most ε.

        Args:
            epsilon: The budget ε.
            rounds: Number of rounds by noise multiplier, given as a multiple of σ.
        """
        return _calibrate(self, epsilon, tuple(rounds.items()))

    def make_event(self, sigma: float) -> Any:
        """Return the event of one round."""
        library = import_library()
        if self.cohort == "local":
            return library.GaussianDpEvent(sigma / 2)
        if self.cohort == "poisson":
            gaussian = library.GaussianDpEvent(sigma)
            return library.PoissonSampledDpEvent(self.size / self.clients, gaussian)
        if not self.replaces_one:
            return library.GaussianDpEvent(sigma)
        return library.SampledWithoutReplacementDpEvent(
            self.clients, int(self.size), library.GaussianDpEvent(sigma / 2)
        )

    def make_accountant(self) -> Any:
        """Return an accountant without any event."""
        library = import_library()
        if self.accountant == "pld":
            return library.pld.PLDAccountant()
        relations = library.NeighboringRelation
        relation = relations.ADD_OR_REMOVE_ONE
        if self.replaces_one:
            relation = relations.REPLACE_ONE
        return library.rdp.RdpAccountant(neighboring_relation=relation)


@cache
def _find_curve(guarantee: Guarantee, sigma: float) -> tuple[Any, Any]:
    """Return the orders and the Rényi divergences of one round."""
    accountant = guarantee.make_accountant()
    with _log_warnings():
        accountant.compose(guarantee.make_event(sigma), 1)
    return accountant.orders, accountant.rdp


@cache
def _calibrate(
    guarantee: Guarantee, epsilon: float, rounds: tuple[tuple[float, int], ...]
) -> float:
    """Return the result of ``Guarantee.calibrate``, cached for all cells of a sweep.

    Args:
        guarantee: Sampling and accountant.
        epsilon: The budget ε.
        rounds: Pairs of a multiple of σ and a number of rounds.
    """
    library = import_library()

    def join_events(sigma: float) -> Any:
        events = []
        for share, count in rounds:
            event = guarantee.make_event(share * sigma)
            events.append(library.SelfComposedDpEvent(event, count))
        return events[0] if len(events) == 1 else library.ComposedDpEvent(events)

    lowest = LOWEST
    with _log_warnings():
        while _find_cost(guarantee, join_events(lowest)) < epsilon:
            if guarantee.accountant == "pld":
                raise UserError(
                    f"privacy.epsilon = {epsilon:g}: needs noise below {LOWEST:g}, for "
                    "which accountant = 'pld' needs too much memory; take 'rdp'"
                )
            lowest /= 10
        sigma = library.calibrate_dp_mechanism(
            guarantee.make_accountant,
            join_events,
            epsilon,
            guarantee.delta,
            library.LowerEndpointAndGuess(lowest, GUESS),
            tol=1 / PRECISION,
        )
    return math.ceil(float(sigma) * PRECISION) / PRECISION


@cache
def _compose(guarantee: Guarantee, sigma: float, rounds: int) -> float:
    """Return ε of a number of rounds, composed as privacy loss distributions."""
    event = import_library().SelfComposedDpEvent(guarantee.make_event(sigma), rounds)
    with _log_warnings():
        return _find_cost(guarantee, event)


def _find_cost(guarantee: Guarantee, event: Any) -> float:
    """Return ε of an event."""
    accountant = guarantee.make_accountant()
    accountant.compose(event)
    found: float = accountant.get_epsilon(guarantee.delta)
    return found


def import_library() -> Any:
    """Import and return the optional package ``dp_accounting``.

    Raises UserError if it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError(
            f"[privacy] needs the package dp-accounting ({error}); install it with "
            "pip install 'hpcfl[privacy]'"
        ) from None
    return dp_accounting


@contextmanager
def _log_warnings() -> Iterator[None]:
    """Send the library's warnings to hpcfl's debug log inside the block."""
    library, own = logging.getLogger("absl"), logging.getLogger("hpcfl")

    def pass_on(record: logging.LogRecord) -> bool:
        own.debug(record.getMessage())
        return False

    library.addFilter(pass_on)
    try:
        yield
    finally:
        library.removeFilter(pass_on)
