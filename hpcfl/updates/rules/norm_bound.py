"""The weighted mean of updates with bounded norms. Clients clip their updates, so that
only the mean travels.
"""

from pydantic import Field
from torch import Tensor

from hpcfl.updates.columns import clip_rows
from hpcfl.updates.rules.mean import Mean


class NormBound(Mean):
    rule: str = "norm-bound"
    bound: float = Field(gt=0, description="maximal norm C of an update")

    def describe(self, clients: int) -> str:
        return f"clips each of {clients} updates to a norm of {self.bound:g}"

    def has_effect(self) -> bool:
        return True

    def bound_updates(self, updates: Tensor) -> Tensor:
        return clip_rows(updates, self.bound)


plugin = NormBound
