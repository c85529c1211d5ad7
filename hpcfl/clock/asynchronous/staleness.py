"""The weight of an update that started from an older model of the server (time.md §5).

The weight s(τ) depends on the steps τ that the server has taken since. It is 1, (1 +
τ)^−a, or 1 up to b and 1/(a(τ − b) + 1) beyond (Xie et al., "Asynchronous federated
optimization", OPT 2020). Weights in means are whole numbers, so s is counted in units
of 2^−b. A power of a floating-point number may differ in its last bit between machines;
the nearest whole number of ``decimal`` does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from hpcfl.clock import exact
from hpcfl.experiment.sections import Time

MOST_BITS = 16  # of 1, in units
# bits of a weight times a client's samples: products of such whole numbers with
# float32 numbers are exact in float64
PRODUCT_BITS = 28
EXPONENT, SLOPE = 0.5, 10.0  # of polynomial and hinge, where ``time.a`` is not given


@dataclass(frozen=True)
class Staleness:
    """The function s(τ) in whole units.

    Attributes:
        bits: 1 is 2^bits units.
    """

    time: Time
    bits: int

    @classmethod
    def from_largest_weight(cls, time: Time, largest: int) -> "Staleness":
        """Return s(τ) for an experiment whose clients weigh at most ``largest``."""
        return cls(time, min(MOST_BITS, PRODUCT_BITS - largest.bit_length()))

    def units(self, staleness: int) -> int:
        """Return s(τ) in units, at least 1."""
        share = self._share(staleness)
        return max(1, exact.round_to_whole(share * 2**self.bits))

    def weights(self, staleness: Sequence[int]) -> list[int]:
        """Return the factors of the weights of a step's updates.

        They are s(τ) in units, or 1 if all updates count whole, so that the step equals
        that of a synchronous server.
        """
        units = [self.units(one) for one in staleness]
        if all(one == 2**self.bits for one in units):
            return [1] * len(units)
        return units

    def rate(self, staleness: Sequence[int]) -> float:
        """Return the length of a step, rounded once.

        It is the mean of s(τ), times the server's learning rate or FedAsync's α.
        """
        total = sum(self.units(one) for one in staleness)
        mean = Fraction(total, len(staleness) * 2**self.bits)
        time = self.time
        whole = time.alpha if time.rule == "fedasync" else time.server_lr
        return float(mean * Fraction(whole))

    def _share(self, staleness: int) -> Decimal:
        """Return s(τ)."""
        time = self.time
        if time.staleness == "polynomial":
            exponent = EXPONENT if time.a is None else time.a
            return exact.compute_power(Decimal(1 + staleness), -Decimal(exponent))
        if time.staleness == "hinge" and staleness > time.b:
            slope = SLOPE if time.a is None else time.a
            return exact.CONTEXT.divide(1, Decimal(slope) * (staleness - time.b) + 1)
        return Decimal(1)
