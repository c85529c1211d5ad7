"""Attacks in which all attackers send the same update, computed from the honest ones.

* ALIE: Baruch, Baruch & Goldberg, "A little is enough", NeurIPS 2019. The standard
  deviation has n − f − 1 in its denominator, and the honest updates are known.
* Inner product: Xie, Koyejo & Gupta, "Fall of empires", UAI 2019.
* Min-max and min-sum: Shejwalkar & Houmansadr, "Manipulating the Byzantine", NDSS 2021.
  The largest γ is computed in closed form, because the published search stops at 20.
"""

from abc import abstractmethod
from statistics import NormalDist
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.updates.base import Attack, Context
from hpcfl.updates.columns import compute_mean, compute_squares, join_blocks, sum_blocks

Direction = Literal["unit", "std", "sign"]


def compute_deviation(honest: Tensor) -> Tensor:
    """Return the standard deviation of each coordinate of h honest rows, with h − 1 in
    the denominator, float64 [P].
    """
    return join_blocks(lambda block: block.std(dim=0), honest)


def find_quantile(clients: int, attackers: int) -> float:
    """Return ALIE's z, at least 0.

    The attackers need s = ⌊n/2 + 1⌋ − f honest clients for a majority, and z =
    Φ⁻¹((n − f − s)/(n − f)).

    Args:
        clients: Number of clients n in the round.
        attackers: Number of attackers f.

    Raises:
        ValueError: f > ⌊n/2⌋, for which z is infinite.
    """
    needed = clients // 2 + 1 - attackers
    honest = clients - attackers
    share = (honest - needed) / honest
    return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0


def compute_direction(honest: Tensor, mean: Tensor, kind: Direction) -> Tensor:
    """Return the direction p [P] of the change of the mean μ.

    Args:
        honest: The honest rows [h, P].
        mean: The mean μ of the honest rows [P].
        kind: "unit" for −μ/‖μ‖, "std" for −σ, "sign" for −sign μ.
    """
    if kind == "std":
        return -compute_deviation(honest)
    if kind == "sign":
        return -mean.sign()
    norm = mean.norm()
    return -mean / norm if norm > 0 else -mean


def find_largest_step(
    honest: Tensor, mean: Tensor, direction: Tensor, by_sum: bool
) -> float:
    """Return the largest γ such that μ + γp is no farther from the honest rows than
    these are from each other.

    The conditions are quadratic in γ: γ²‖p‖² + 2γb + c ≤ 0.

    Args:
        honest: The honest rows [h, P].
        mean: The mean μ of the honest rows [P].
        direction: The direction p [P].
        by_sum: Whether to compare the sums of squared distances to all honest rows;
            otherwise the largest distances are compared.
    """
    length = float(direction.square().sum())
    if not length:
        return 0.0
    squares = compute_squares(honest)
    products, distances = _compare(honest, mean, direction)
    if by_sum:
        length *= len(honest)
        half = products.sum()[None]
        constant = (distances.sum() - squares.sum(dim=1).max())[None]
    else:
        half, constant = products, distances - squares.max()
    # γ = 0 fulfils the conditions, because μ is the mean of the honest rows. The clamp
    # removes rounding errors.
    root = (half.square() - length * constant.clamp(max=0)).sqrt()
    return float(((root - half) / length).min())


def _compare(honest: Tensor, mean: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return p·(μ − Δ_i) and ‖μ − Δ_i‖² for each honest row, float64 [h]."""

    def compare(block: Tensor, middle: Tensor, along: Tensor) -> Tensor:
        differences = middle - block
        return torch.stack([differences @ along, differences.square().sum(dim=1)])

    products, distances = sum_blocks(compare, honest, mean, direction)
    return products, distances


class Collusion(Attack):
    """Base class of attacks in which all attackers send the same update."""

    needs_honest = True

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        assert honest is not None
        forged = self.forge_one(honest, len(updates))
        return forged.to(updates.dtype).expand_as(updates)

    @abstractmethod
    def forge_one(self, honest: Tensor, attackers: int) -> Tensor:
        """Return the update of all attackers, float64 [P].

        Args:
            honest: The honest updates [h, P].
            attackers: The number of attackers.
        """


class LittleIsEnough(Collusion):
    """ALIE: the update μ − zσ, within the spread of the honest updates.

    Baruch, Baruch & Goldberg, NeurIPS 2019.
    """

    kind: str = "alie"
    z: float | None = Field(
        None,
        ge=0,
        description="z, the number of standard deviations from the mean; default: the largest z "
        "that a majority hides",
    )

    def find_problem(self, attackers: int, honest: int) -> str:
        if honest < 2:
            return f"it needs 2 honest clients in a round, here {honest}"
        most = (attackers + honest) // 2
        if self.z is None and attackers > most:
            return (
                f"z is infinite with {attackers} attackers of {attackers + honest} clients "
                f"in a round; take at most {most} attackers, or set z"
            )
        return ""

    def describe(self, attackers: int, honest: int) -> str:
        if self.find_problem(attackers, honest):
            return ""
        z = find_quantile(attackers + honest, attackers) if self.z is None else self.z
        return f"z = {z:.4g}"

    def forge_one(self, honest: Tensor, attackers: int) -> Tensor:
        z = self.z
        if z is None:
            z = find_quantile(len(honest) + attackers, attackers)
        return compute_mean(honest) - z * compute_deviation(honest)


class InnerProduct(Collusion):
    """The reversed mean −εμ of the honest updates.

    Xie, Koyejo & Gupta, UAI 2019.
    """

    kind: str = "ipm"
    factor: float = Field(
        0.5, gt=0, description="factor ε on the reversed mean of the honest updates"
    )

    def forge_one(self, honest: Tensor, attackers: int) -> Tensor:
        return -self.factor * compute_mean(honest)


class MinMax(Collusion):
    """Min-max: the update μ + γp with the largest γ whose largest distance to an honest
    update is at most the largest distance between two honest updates.

    Shejwalkar & Houmansadr, NDSS 2021.
    """

    by_sum: ClassVar[bool] = False
    kind: str = "min-max"
    direction: Direction = Field(
        "unit",
        description="direction p: unit: −μ/‖μ‖, std: −σ, sign: −sign μ of the honest updates",
    )

    def find_problem(self, attackers: int, honest: int) -> str:
        if self.direction == "std" and honest < 2:
            return f"direction = 'std' needs 2 honest clients in a round, here {honest}"
        return ""

    def forge_one(self, honest: Tensor, attackers: int) -> Tensor:
        mean = compute_mean(honest)
        direction = compute_direction(honest, mean, self.direction)
        step = find_largest_step(honest, mean, direction, self.by_sum)
        return mean + step * direction


class MinSum(MinMax):
    """Min-sum: the update μ + γp with the largest γ whose sum of squared distances to
    the honest updates is at most the largest such sum of an honest update.

    Shejwalkar & Houmansadr, NDSS 2021.
    """

    by_sum = True
    kind: str = "min-sum"


plugins = {
    "alie": LittleIsEnough,
    "ipm": InnerProduct,
    "min-max": MinMax,
    "min-sum": MinSum,
}
