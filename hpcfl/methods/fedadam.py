"""FedAdam: FedAvg whose server takes Adam's steps along the clients' mean change.

Reddi et al., "Adaptive federated optimization", ICLR 2021: v ← β₂v + (1 − β₂)Δ². The
mean change weights clients by samples; the paper's algorithm has equal weights
(``_adaptive_server``).
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods._adaptive_server import AdaptiveServer


class FedAdam(AdaptiveServer):
    """State and traffic as in ``AdaptiveServer``."""

    beta2: float = Field(
        0.99, ge=0, le=1, description="weight β₂ of the old v in the new v"
    )

    def compute_second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        return torch.lerp(square, old, self.beta2)


plugin = FedAdam
