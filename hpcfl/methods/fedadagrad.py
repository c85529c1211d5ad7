"""FedAdagrad: FedAvg whose server takes Adagrad's steps along the clients' mean change.

Reddi et al., "Adaptive federated optimization", ICLR 2021: v ← v + Δ². v never falls,
so the rate of a parameter never rises. β₁ = 0 as in the paper's experiments; FL-bench
and fluke keep FedAdam's 0.9 (methods-3.md §18). v starts at τ² as in Algorithm 2; the
authors' code starts at 0. The mean change weights clients by samples; the paper's
algorithm has equal weights (``_adaptive_server``).
"""

from pydantic import Field
from torch import Tensor

from hpcfl.methods._adaptive_server import AdaptiveServer
from hpcfl.methods.base import search


class FedAdagrad(AdaptiveServer):
    """State and traffic as in ``AdaptiveServer``."""

    server_lr: float = Field(
        0.1,
        ge=0,
        description="learning rate η of the server; 0 never moves the model",
        json_schema_extra=search(
            [0.001, 0.01, 0.1, 1.0], "decades of the grid in Reddi et al., 2021"
        ),
    )
    beta1: float = Field(
        0.0, ge=0, lt=1, description="weight β₁ of the old m in the new m"
    )

    def compute_second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        return old + square


plugin = FedAdagrad
