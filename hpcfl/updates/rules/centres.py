"""Rules that move a centre towards the rows.

* Geometric median (RFA): Pillutla, Kakade & Harchaoui, "Robust aggregation for
federated
  learning", IEEE TSP 2022.
* Centred clipping: Karimireddy, He & Jaggi, "Learning from history for Byzantine robust
  optimization", ICML 2021.

Other implementations differ: RFA's code has ν = 1e−5 and 4 steps as defaults; byzfl
starts from zero with ν = 0.1.
"""

from functools import partial

from pydantic import Field, PositiveInt
from torch import Tensor

from hpcfl.updates.base import Context
from hpcfl.updates.columns import (
    compute_distances,
    compute_weighted_mean,
    join_blocks,
)
from hpcfl.updates.row_rule import RowRule


def _move(shares: Tensor, block: Tensor, centre: Tensor) -> Tensor:
    """Return the centre [columns] plus Σ_i shares_i (Δ_i − centre)."""
    return centre + shares.to(block.device) @ (block - centre)


class GeometricMedian(RowRule):
    """The geometric median by smoothed Weiszfeld steps from the weighted mean.

    A step is v ← Σ w_i Δ_i / Σ w_i with w_i = p_i/max(ν, ‖v − Δ_i‖).
    Pillutla, Kakade & Harchaoui, IEEE TSP 2022 (RFA).
    """

    is_weighted = True
    rule: str = "geometric-median"
    steps: PositiveInt = Field(3, description="number R of Weiszfeld steps")
    smallest: float = Field(
        1e-6, gt=0, description="smallest distance ν in a denominator"
    )

    def describe_rows(self, rows: int) -> str:
        return (
            f"takes {self.steps} steps from the mean of {rows} updates towards their "
            "median"
        )

    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        centre = compute_weighted_mean(rows, weights)
        for _ in range(self.steps):
            distances = compute_distances(rows, centre)
            factors = weights.double() / distances.clamp(min=self.smallest)
            centre = compute_weighted_mean(rows, factors)
        return centre


class CenteredClip(RowRule):
    """Steps of a centre towards the updates, which are clipped to a radius around it.

    Karimireddy, He & Jaggi, ICML 2021. A step is v ← v + (1/n) Σ (Δ_i − v)·τ/max(τ,
    ‖Δ_i − v‖). The centre is state of the server: a round starts from the centre of the
    previous round, round 1 from zero.
    """

    rule: str = "centered-clip"
    radius: float = Field(
        10.0,
        gt=0,
        description="radius τ around the centre to which updates are clipped",
    )
    steps: PositiveInt = Field(1, description="number L of steps per round")

    def describe_rows(self, rows: int) -> str:
        return (
            f"moves the last round's centre {self.steps} times, towards {rows} updates "
            f"clipped to {self.radius:g} around it"
        )

    def list_memory(self) -> tuple[str, ...]:
        return ("centre",)

    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        centre = context.memory["centre"].double()
        for _ in range(self.steps):
            distances = compute_distances(rows, centre)
            shares = self.radius / distances.clamp(min=self.radius) / len(rows)
            centre = join_blocks(partial(_move, shares), rows, centre)
        context.memory["centre"] = centre.float()
        return centre


plugins: dict[str, type[RowRule]] = {
    "geometric-median": GeometricMedian,
    "centered-clip": CenteredClip,
}
