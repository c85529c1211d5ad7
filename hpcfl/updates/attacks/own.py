"""Attacks that each attacker makes of its own update."""

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hpcfl.updates.base import Attack, Context


class SignFlip(Attack):
    """The reversed update −γΔ of the attacker."""

    kind: str = "sign-flip"
    factor: float = Field(1.0, gt=0, description="γ, times the attacker's own update")

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        return -self.factor * updates


class Gaussian(Attack):
    """Normal noise in place of an update, N(0, σ²) in each coordinate."""

    kind: str = "gaussian"
    sigma: float = Field(1.0, gt=0, description="σ, the standard deviation")

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        width = updates.shape[1]
        rows = []
        for client in context.ids.tolist():
            random = context.random_of("gaussian attack", client)
            rows.append(self.sigma * random.standard_normal(width))
        return torch.from_numpy(np.stack(rows)).to(updates)


plugins: dict[str, type[Attack]] = {"sign-flip": SignFlip, "gaussian": Gaussian}
