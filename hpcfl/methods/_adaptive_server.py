"""Base class of FedAdam, FedYogi and FedAdagrad, whose server optimiser uses the
clients' mean change as gradient.

Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2. Δ is the
weighted mean of the clients' changes w_i − w. The server computes m ← β₁m + (1 − β₁)Δ,
then v as the method defines, and w ← w + η m / (√v + τ). All steps are element by
element, without bias correction. m starts at 0 and v at τ², the smallest value in the
paper. Clients use the experiment's learning rate.

Algorithm 2 has the uniform mean. Here clients are weighted by samples, as in FedAvg, so
that a comparison isolates the method (methods-2.md §12). ``weights = "uniform"`` gives
the algorithm's mean.
"""

from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import Cohort, Setup, State, search
from hpcfl.methods.fedavg import ServerModel


class AdaptiveServer(ServerModel):
    """State and traffic of the adaptive methods.

    Server: ``model`` w, ``first`` m and ``second`` v, [P] each. Client: none. Down P,
    up P.
    """

    family = "one global model"
    reference = "Reddi et al., ICLR 2021"
    server_zeros = ("first",)
    server_lr: float = Field(
        0.01,
        ge=0,
        description="learning rate η of the server; 0 never moves the model",
        json_schema_extra=search(
            [0.001, 0.01, 0.1, 1.0], "decades of the grid in Reddi et al., 2021"
        ),
    )
    beta1: float = Field(
        0.9, ge=0, lt=1, description="weight β₁ of the old m in the new m"
    )
    tau: float = Field(
        1e-3, gt=0, description="degree τ of adaptivity, the constant added to √v"
    )

    def server_state(self, setup: Setup) -> State:
        state = super().server_state(setup)
        return {**state, "second": torch.full_like(state["model"], self.tau**2)}

    @abstractmethod
    def compute_second_moment(self, old: Tensor, square: Tensor) -> Tensor:
        """Return v [P] from its ``old`` value and Δ², ``square``."""

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        change = uplink["model"] - server["model"]
        server["first"] = torch.lerp(change, server["first"], self.beta1)
        server["second"] = self.compute_second_moment(server["second"], change.square())
        step = server["first"] / (server["second"].sqrt() + self.tau)
        server["model"] = server["model"] + self.server_lr * step
