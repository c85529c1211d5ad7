"""DiversiFed: the server pulls similar models together and pushes dissimilar ones apart; clients stay
near the result.

Wu et al., "The Diversity Bonus", eqs 8–11. The server's step is one mixing matrix: with D_ij = ‖w_i − w_j‖₂,
s_ij the softmax of D_ij/τ over the others and n of them, β_ij = α(1/n − s_ij)/(τ D_ij) and z_i = (1 − Σ_j
β_ij) w_i + Σ_j β_ij w_j. Where the paper is silent (methods-1.md §7, item 9): training starts at w_i;
the others are the clients that uploaded last; a client is scored after local training.
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods._anchored import Anchored

COINCIDE = 1e-12  # closer models exert no force: the subgradient 0 of the norm at 0


def forces(distances: Tensor, itself: Tensor, alpha: float, tau: float) -> Tensor:
    """β [m, n], float64; entries may be negative. With one other or none, β = 0.

    distances [m, n] from each receiver to each last upload; ``itself`` bool [m, n] marks its own upload.
    """
    others = (~itself).sum(dim=1, keepdim=True).double()  # an integer's inverse would be float32
    scaled = (distances / tau).masked_fill(itself, -torch.inf)
    attention = torch.where(others > 0, scaled.softmax(dim=1), 0)  # no other: a softmax over nothing
    acts = ~itself & (distances >= COINCIDE)
    return torch.where(acts, alpha * (1 / others - attention) / (tau * distances.clamp(min=COINCIDE)), 0)


class DiversiFed(Anchored):
    """Server: ``models`` [M, P], ``uploaded`` [M]. Client: ``model`` [P]. Down P (the anchor z), up P."""

    reference = "Wu et al., The Diversity Bonus"
    alpha: float = Field(1.0, gt=0, description="step size α of the server's gradient step")
    lam: float = Field(2.0, ge=0, description="strength λ of the proximal term (λ/2α)‖w − z‖²; 0 is Local")
    tau: float = Field(1.0, gt=0, description="temperature τ of the softmax over distances")

    def strength(self) -> float:
        return self.lam / self.alpha

    def attraction(self, distances: Tensor, itself: Tensor) -> Tensor:
        return forces(distances, itself, self.alpha, self.tau)


plugin = DiversiFed
