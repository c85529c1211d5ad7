"""The weighted mean of the updates, exact on any number of ranks."""

from typing import ClassVar, Self

from pydantic import Field, model_validator
from torch import Tensor

from hpcfl.rows import sums
from hpcfl.updates.base import Context, Rule
from hpcfl.updates.rounding import MOST_BITS


class Mean(Rule):
    needs_rows = False
    is_weighted = True
    allows_noise = True
    readers: ClassVar = {"secure": {True: ("bits", "clip", "step")}}

    clip: float | None = Field(
        None, gt=0, description="secure: maximal norm of an update"
    )
    step: float = Field(
        1e-3, gt=0, description="secure: step γ, the value of the integer 1"
    )
    bits: int | None = Field(
        None,
        ge=2,
        le=MOST_BITS,
        description="secure: bits of an integer; default: the least sufficient number",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.secure and self.clip is None:
            raise ValueError("secure needs clip, the maximal norm of an update")
        self.refuse_unread()
        return self

    def describe(self, clients: int) -> str:
        return f"takes the weighted mean of {clients} updates"

    def combine(self, updates: Tensor, weights: Tensor, context: Context) -> Tensor:
        return sums.compute_mean(updates, weights)


plugin = Mean
