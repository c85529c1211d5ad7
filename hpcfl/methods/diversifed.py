"""DiversiFed: the server moves similar models together and others apart; clients train
with a proximal term to the result.

Wu et al., "The Diversity Bonus", eqs 8–11. The server's gradient step is one mixing
matrix. For client i and the n others that uploaded last, let D_ij = ‖w_i − w_j‖₂ and
s_ij the softmax of D_ij/τ over these others. Then β_ij = α(1/n − s_ij)/(τ D_ij) and z_i
= (1 − Σ_j β_ij) w_i + Σ_j β_ij w_j. The client minimises F_i(w) + (λ/2α)‖w − z_i‖².

The paper leaves three points open (methods-1.md §7, item 9). Here local training starts
at w_i, not at z_i. The others are the clients with an upload in the last round. A
client is scored after local training.
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods._anchored import MixedAnchor
from hpcfl.methods.base import search
from hpcfl.rows import mixing

COINCIDE = 1e-12  # closer models have no effect: 0 is a subgradient of the norm at 0


def compute_forces(
    distances: Tensor, itself: Tensor, alpha: float, tau: float
) -> Tensor:
    """Return β [m, n], float64, with positive and negative entries; 0 with a single
    other client or none.

    Args:
        distances: Euclidean distances, float64 [m, n], of m receivers' models from n
            uploads.
        itself: Mask of the receivers' own uploads, bool [m, n], for which β is 0.
        alpha: The step size α.
        tau: The temperature τ.
    """
    # The inverse of an integer would be float32.
    others = (~itself).sum(dim=1, keepdim=True).double()
    scaled = (distances / tau).masked_fill(itself, -torch.inf)
    # An empty softmax is NaN.
    attention = torch.where(others > 0, scaled.softmax(dim=1), 0)
    acts = ~itself & (distances >= COINCIDE)
    return torch.where(
        acts,
        alpha * (1 / others - attention) / (tau * distances.clamp(min=COINCIDE)),
        0,
    )


class DiversiFed(MixedAnchor):
    """State and traffic of DiversiFed.

    Server: ``models`` [M, P], ``uploaded`` [M]. Client: ``model`` [P]. Down P (the
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

    def compute_strength(self) -> float:
        return self.lam / self.alpha

    def compute_attraction(
        self, models: Tensor, receivers: Tensor, senders: Tensor
    ) -> Tensor:
        distances = mixing.compute_distances_within(models, receivers, senders)
        itself = receivers[:, None] == senders
        return compute_forces(distances, itself, self.alpha, self.tau)


plugin = DiversiFed
