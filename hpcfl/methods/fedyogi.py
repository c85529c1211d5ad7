"""FedYogi: FedAvg whose server takes Yogi's steps along the clients' mean change.

Reddi et al., "Adaptive federated optimization", ICLR 2021: v ← v − (1 − β₂)Δ² sign(v −
Δ²). This changes v by at most Δ²; Adam's v decays at a fixed rate. The mean change
weights clients by samples; the paper's algorithm has equal weights
(``_adaptive_server``).
"""

from pydantic import Field
from torch import Tensor

from hpcfl.methods._adaptive_server import AdaptiveServer


class FedYogi(AdaptiveServer):
    """State and traffic as in ``AdaptiveServer``."""

    beta2: float = Field(0.99, ge=0, le=1, description="constant β₂ of the step on v")

    def compute_second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        return old - (1 - self.beta2) * square * (old - square).sign()


plugin = FedYogi
