"""DiversiFed: the server pulls similar models together and pushes others apart; clients
stay near the result.

Wu et al., "The Diversity Bonus", eqs 8–11. The server's gradient step is one mixing
matrix. For client i and the n others that uploaded last, let D_ij = ‖w_i − w_j‖₂ and
s_ij the softmax of D_ij/τ over these others; then β_ij = α(1/n − s_ij)/(τ D_ij) and z_i
= (1 − Σ_j β_ij) w_i + Σ_j β_ij w_j. The client minimises F_i(w) + (λ/2α)‖w − z_i‖².

Where the paper is silent (methods-1.md §7, item 9): local training starts at w_i, not
at z_i; the others are the clients that uploaded in the last round; a client is scored
after local training.
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods._anchored import MixedAnchor
from hpcfl.methods.base import search

COINCIDE = (
    1e-12  # models that are closer exert no force: 0 is a subgradient of the norm at 0
)


def forces(distances: Tensor, itself: Tensor, alpha: float, tau: float) -> Tensor:
    """β [m, n], float64, whose entries may be negative; 0 with a single other client or
    none.

    distances, itself: as for ``MixedAnchor.attraction``.
    """
    others = (
        (~itself).sum(dim=1, keepdim=True).double()
    )  # an integer's inverse would be float32
    scaled = (distances / tau).masked_fill(itself, -torch.inf)
    attention = torch.where(
        others > 0, scaled.softmax(dim=1), 0
    )  # a softmax over no others is NaN
    acts = ~itself & (distances >= COINCIDE)
    return torch.where(
        acts,
        alpha * (1 / others - attention) / (tau * distances.clamp(min=COINCIDE)),
        0,
    )


class DiversiFed(MixedAnchor):
    """Server: ``models`` [M, P], ``uploaded`` [M]. Client: ``model`` [P]. Down P (the
    anchor z), up P.
    """

    reference = "Wu et al., The Diversity Bonus"
    alpha: float = Field(
        1.0, gt=0, description="step size α of the server's gradient step"
    )
    lam: float = Field(
        2.0,
        ge=0,
        description="strength λ of the proximal term (λ/2α)‖w − z‖²; 0 is Local",
        json_schema_extra=search(
            [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "DiversiFed"
        ),
    )
    tau: float = Field(
        1.0,
        gt=0,
        description="temperature τ of the softmax over distances",
        json_schema_extra=search([0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1], "DiversiFed"),
    )

    def strength(self) -> float:
        return self.lam / self.alpha

    def attraction(self, distances: Tensor, itself: Tensor) -> Tensor:
        return forces(distances, itself, self.alpha, self.tau)


plugin = DiversiFed
