"""q-FFL: FedAvg with larger weights for clients with a larger loss, to make the losses
more equal.

Li et al., "Fair resource allocation in federated learning", ICLR 2020, algorithm
q-FedAvg. F_i is the mean loss of the received model w on client i's training samples,
d_i = w − w_i after local training and L = 1/η. The server computes w ← w − Σ_S Δ_i /
Σ_S h_i with Δ_i = F_i^q L d_i and h_i = q F_i^(q−1) ‖L d_i‖² + L F_i^q. Divided by L
this is w − Σ F_i^q d_i / Σ (L q F_i^(q−1) ‖d_i‖² + F_i^q). The clients send the three
sums. q = 0 is FedAvg with uniform weights.

The authors' code draws clients in proportion to their samples and averages uniformly.
Here clients are drawn as in every method, and averages are uniform, too (methods-3.md
§19, item 9). η is the clients' learning rate of the round, so L assumes plain steps;
with another optimiser it is only a scale. 10⁻¹⁰ is added to F_i, as in the authors'
code. The sums are in float64, which holds F_i^q for every q that the key allows.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import Cohort, Fleet, Inbox, Mean, Message, State, search
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing

FLOOR = 1e-10  # added to every loss


class QFFL(ServerModel):
    """State and traffic of q-FFL.

    Server: ``model`` w [P]. Client: none. Down P, up P + 2.
    """

    family = "one global model"
    reference = "Li et al., ICLR 2020"
    keeps = ("ala",)
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients in averages"
    )
    q: float = Field(
        1.0,
        ge=0,
        le=20,
        description="exponent q of the losses in the clients' weights; 0 is FedAvg",
        json_schema_extra=search([0.001, 0.01, 0.1, 1.0, 2.0, 5.0], "Li et al., 2020"),
    )

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        # Computed before training changes the batch-norm buffers.
        losses = fleet.loss_of(self.received(fleet, inbox))
        return super().update(fleet, {**inbox, "losses": losses})

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        change = (self.received(fleet, inbox) - trained).double()
        losses = inbox["losses"][:, None] + FLOOR
        # F^q is computed from its logarithm, because the last bits of powers depend on
        # other clients.
        power = (self.q * losses.log()).exp()
        length = mixing.sum_rows(change.square())[:, None]
        shares = self.shares(fleet)
        return {
            "change": Mean(power * change, shares),
            "bend": Mean(self.q * power / losses * length, shares),
            "power": Mean(power, shares),
        }

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        rate = cohort.setup.learning_rate(cohort.round)
        step = uplink["change"] / (uplink["bend"] / rate + uplink["power"])
        server["model"] = (server["model"].double() - step).float()


plugin = QFFL
