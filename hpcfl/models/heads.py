"""Output layers that replace a model's head, for ``model.head`` or a method."""

from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

Rows = Literal["orthonormal", "simplex"]  # the initial rows of a CosineHead


class CosineHead(nn.Linear):
    """Logits = scale · V̂ f/‖f‖ for features f, with V̂ the rows of ``weight`` [K, d]
    at unit length.

    The rows start far apart on the unit sphere, and ``scale`` [1] is learnable. In
    FedNH (Dai et al., AAAI 2023) these rows are the prototypes, which training leaves
    frozen.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        scale: float,
        rows: Rows = "orthonormal",
    ):
        """Initialise the rows by ``rows`` and the scale by ``scale``."""
        super().__init__(features, classes, bias=False)
        start = make_simplex if rows == "simplex" else spread
        self.weight = nn.Parameter(start(classes, features))
        self.scale = nn.Parameter(torch.tensor([scale]))

    def forward(self, features: Tensor) -> Tensor:
        rows = functional.normalize(self.weight, dim=1)
        directions = functional.normalize(features, dim=1)
        return self.scale * functional.linear(directions, rows)


def make_simplex(classes: int, width: int) -> Tensor:
    """Draw rows [classes, width] of unit length, as far apart as possible, from torch's
    generator.

    If ``width`` is at least K − 1, they are the corners of a regular simplex. Cosines
    are then −1/(K − 1) and squared distances 2K/(K − 1). Otherwise ``spread`` draws
    them.
    """
    if classes > width + 1:
        return spread(classes, width)
    ones_first = torch.eye(classes)
    ones_first[:, 0] = 1.0
    basis = torch.linalg.qr(ones_first).Q[:, 1:]  # orthogonal to (1, …, 1)
    directions = nn.init.orthogonal_(torch.empty(classes - 1, width))
    return functional.normalize(basis @ directions, dim=1)


def spread(classes: int, width: int) -> Tensor:
    """Draw rows [classes, width] of unit length that are far apart, from torch's
    generator.

    The rows are orthonormal if there are at most ``width``. In the plane row k is at
    angle 2πk/K, as in FedNH's code for its spiral (protocols.md B7). Otherwise they
    come from a descent on the log-sum-exp of cosines.
    """
    rows = torch.empty(classes, width)
    if classes <= width:
        return nn.init.orthogonal_(rows)
    if width == 2:
        angles = 2 * torch.pi * torch.arange(classes) / classes
        return torch.stack([angles.cos(), angles.sin()], dim=1)
    rows = functional.normalize(rows.normal_(), dim=1)
    # ∂/∂V of τ·Σ_i log Σ_j≠i exp(V_i·V_j/τ) pushes each row away from its nearest ones
    for step in range(500):
        # The temperature falls from 1 to 0.03: rows that begin close together move
        # apart only while it is high.
        tau = 0.03 ** (step / 500)
        cosines = rows @ rows.T / tau
        nearness = cosines.fill_diagonal_(-torch.inf).softmax(dim=1)
        moved = rows - 0.3 * tau * (nearness + nearness.T) @ rows
        rows = functional.normalize(moved, dim=1)
    return rows
