"""FedProx: FedAvg with a proximal term that keeps local models near the received one.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020. Clients
minimise F_i(w_i) + (μ/2)‖w_i − w‖² with the received w constant. The paper's inexact
local solutions are left out, as in the comparisons that hpcfl reproduces (methods-1.md
§4.3). ``participation.stragglers`` simulates its stragglers.
"""

from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import Fleet, Inbox, search
from hpcfl.methods.fedavg import FedAvg


class FedProx(FedAvg):
    """State and traffic of FedProx.

    Server: ``model`` [P]. Client: none. Down P, up P.
    """

    reference = "Li et al., MLSys 2020"
    mu: float = Field(
        0.001,
        ge=0,
        description="strength μ of the proximal term; 0 is FedAvg",
        json_schema_extra=search([0.1, 0.01, 0.001, 0.0001], "FedALA"),
    )

    def proximal_term(self, fleet: Fleet, inbox: Inbox) -> tuple[float, Tensor]:
        return self.mu, self.received(fleet, inbox)


plugin = FedProx
