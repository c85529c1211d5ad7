"""Attacks that each attacker computes from its own update."""

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hpcfl.updates.base import Attack, Context


class SignFlip(Attack):
    """The reversed update −γΔ of the attacker."""

    kind: str = "sign-flip"
    factor: float = Field(
        1.0, gt=0, description="factor γ on the attacker's reversed update"
    )

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        return -self.factor * updates


class Gaussian(Attack):
    """Normal noise instead of an update, N(0, σ²) in each coordinate."""

    kind: str = "gaussian"
    sigma: float = Field(1.0, gt=0, description="standard deviation σ of the noise")

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        width = updates.shape[1]
        rows = []
        for client in context.ids.tolist():
            random = context.random_of("gaussian attack", client)
            rows.append(self.sigma * random.standard_normal(width))
        return torch.from_numpy(np.stack(rows)).to(updates)


class Scale(Attack):
    """The attacker's own update times a factor. With the default factor, the server's
    model becomes the attacker's if the other clients' updates are 0.

    Bagdasaryan, Veit, Hua, Estrin & Shmatikov, AISTATS 2020. The default factor is
    1/(p_i η), which is n/η with uniform weights. An update with weight p_i = 0 stays
    unchanged.
    """

    needs_honest = True  # p_i depends on the weights of the whole cohort
    kind: str = "scale"
    factor: float | None = Field(
        None, gt=0, description="factor γ on the attacker's update; default: 1/(p_i η)"
    )
    server_lr: float = Field(1.0, gt=0, description="learning rate η of the server")

    readers: ClassVar = {"factor": {None: ("server_lr",)}}

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
