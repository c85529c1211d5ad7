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


class Scale(Attack):
    """The attacker's own update, scaled: with the default factor the model that the
    server makes is the attacker's, where the other clients agree.

    Bagdasaryan, Veit, Hua, Estrin & Shmatikov, AISTATS 2020. The default factor is
    1/(p_i η), which is n/η with uniform weights. An update of weight p_i = 0, which does
    not count, stays as it is.
    """

    needs_honest = True  # whose weights are in p_i
    kind: str = "scale"
    factor: float | None = Field(
        None, gt=0, description="γ, times the own update; default: 1/(p_i η)"
    )
    server_lr: float = Field(1.0, gt=0, description="η, the server's learning rate")

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        if self.factor is not None:
            return self.factor * updates
        assert context.shares is not None
        counts = context.shares > 0
        shares = np.where(counts, context.shares, 1)
        scaled = np.where(counts, 1 / (shares * self.server_lr), 1)
        factors = torch.from_numpy(scaled).to(updates)
        return factors[:, None] * updates


plugins: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "scale": Scale,
}
