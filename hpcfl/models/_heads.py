"""Output layers that any model can have (``model.head``) or a method can put in place of the model's own."""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class CosineHead(nn.Linear):
    """logits = scale · V̂ f/‖f‖, V̂ the rows of ``weight`` [K, d] at unit length; ``scale`` [1] is learnable.

    The rows start far apart on the unit sphere. As in FedNH (Dai et al., AAAI 2023), whose prototypes are
    these rows, frozen.
    """

    def __init__(self, features: int, classes: int, scale: float):
        super().__init__(features, classes, bias=False)
        self.weight = nn.Parameter(spread(classes, features))
        self.scale = nn.Parameter(torch.tensor([scale]))

    def forward(self, features: Tensor) -> Tensor:
        rows = functional.normalize(self.weight, dim=1, eps=1e-12)
        return self.scale * functional.linear(functional.normalize(features, eps=1e-12), rows)


def spread(classes: int, width: int) -> Tensor:
    """Unit rows [classes, width], far apart: orthonormal if they fit, else by descent on the log-sum-exp
    of cosines."""
    rows = torch.empty(classes, width)
    if classes <= width:
        return nn.init.orthogonal_(rows)
    rows = functional.normalize(rows.normal_(), dim=1)
    # ∂/∂V of τ·Σ_i log Σ_j≠i exp(V_i·V_j/τ) pushes each row away from its nearest ones
    for step in range(500):
        tau = 0.03 ** (step / 500)  # cooled from 1: started cold, rows that begin close together stay so
        nearness = (rows @ rows.T / tau).fill_diagonal_(-torch.inf).softmax(dim=1)
        rows = functional.normalize(rows - 0.3 * tau * (nearness + nearness.T) @ rows, dim=1)
    return rows
