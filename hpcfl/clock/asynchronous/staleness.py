"""Weights of updates that started from older models of the server (time.md §5).

The weight s(τ) depends on the number of steps τ that the server has taken since. It is
1, (1 + τ)^−a, or 1 up to b and 1/(a(τ − b) + 1) beyond (Xie et al., "Asynchronous
federated optimization", OPT 2020). Weights in means are whole numbers, so s is counted
in units of 2^−b. Powers of floating-point numbers may differ between machines in the
last bit; nearest whole numbers computed by ``decimal`` do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from hpcfl.clock import exact
from hpcfl.experiment.sections import Time

MOST_BITS = 16  # largest number of bits b of a unit
# largest number of bits of a weight times a client's samples: products of these whole
# numbers with float32 numbers are exact in float64
PRODUCT_BITS = 28
EXPONENT, SLOPE = 0.5, 10.0  # defaults of ``time.a`` for polynomial and hinge


@dataclass(frozen=True)
class Staleness:
    """The function s(τ) in units of 2^−bits.

    Attributes:
        time: section ``[time]``.
        bits: number of bits of a unit.
    """

    time: Time
    bits: int

    @classmethod
    def from_largest_weight(cls, time: Time, largest: int) -> "Staleness":
        """Return s(τ) for clients with weights of at most ``largest``."""
        return cls(time, min(MOST_BITS, PRODUCT_BITS - largest.bit_length()))

    def count_units(self, staleness: int) -> int:
        """Return s(τ) in units, at least 1."""
        share = self._compute_share(staleness)
        return max(1, exact.round_to_whole(share * 2**self.bits))

    def compute_weights(self, staleness: Sequence[int]) -> list[int]:
        """Return the factors of the weights of a step's updates.

        The factors are s(τ) in units, or 1 if s(τ) = 1 for all updates, so that the
        step equals that of a synchronous server.
        """
        units = [self.count_units(one) for one in staleness]
        if all(one == 2**self.bits for one in units):
            return [1] * len(units)
        return units

    def compute_rate(self, staleness: Sequence[int]) -> float:
        """Return the length of a step, rounded once.

        It is the mean of s(τ) times the server's learning rate, or times FedAsync's α.
        """
        total = sum(self.count_units(one) for one in staleness)
        mean = Fraction(total, len(staleness) * 2**self.bits)
        time = self.time
        whole = time.alpha if time.rule == "fedasync" else time.server_lr
        return float(mean * Fraction(whole))

    def _compute_share(self, staleness: int) -> Decimal:
        """Return s(τ)."""
        time = self.time
        if time.staleness == "polynomial":
            exponent = EXPONENT if time.a is None else time.a
            return exact.compute_power(Decimal(1 + staleness), -Decimal(exponent))
        if time.staleness == "hinge" and staleness > time.b:
            slope = SLOPE if time.a is None else time.a
            return exact.CONTEXT.divide(1, Decimal(slope) * (staleness - time.b) + 1)
        return Decimal(1)
