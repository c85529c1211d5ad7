"""FedNova: the server averages the clients' changes, each divided by its effective
number of steps.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated
optimization", NeurIPS 2020. In FedAvg, clients with more steps move the average further
towards their optimum. Client i takes τ_i steps from w as in FedAvg. a_i is the sum of
the weights of its gradients in its change, so that (w − w_i)/a_i is η times a mean
gradient. The server computes w ← w − τ_eff Σ_S p_i (w − w_i)/a_i with τ_eff = Σ_S p_i
a_i. With a proximal term τ_eff = Σ_S p_i τ_i, as in the authors' code.

a_i is counted step by step, c ← ρc + 1 − ημa and a ← a + c, with momentum ρ and
proximal strength μ. For plain steps this gives τ_i, for momentum alone (τ − ρ(1 −
ρ^τ)/(1 − ρ))/(1 − ρ) and for μ alone (1 − (1 − ημ)^τ)/(ημ). With both the count follows
the optimiser, in which the proximal term passes through the momentum, as in the
authors' code. Their count a_i mixes the two recursions (methods-3.md §3, item 9).

The count covers the actual steps. Adam has no such weights: a_i = τ_i, with a note. The
server averages changes; another code averages models with weights whose sum is not one.
The server's momentum sums changes of parameters. The authors' momentum sums gradients,
which differs if the learning rate changes.
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import (
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Setup,
    State,
    StepContext,
    search,
)
from hpcfl.methods.fedavg import ServerModel


class FedNova(ServerModel):
    """State and traffic of FedNova.

    Server: ``model`` w [P]; ``step`` [P], its last step. Client: none. Down P, up P +
    1.
    """

    family = "one global model"
    reference = "Wang et al., NeurIPS 2020"
    keeps = ("ala",)
    server_zeros = ("step",)
    short = {"mu": 0.1, "server_momentum": 0.5}
    mu: float = Field(
        0.0, ge=0, description="strength μ of FedProx's proximal term in local training"
    )
    server_momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="momentum of the server, the weight of its last step",
        json_schema_extra=search(
            [0.0, 0.5, 0.9], "no range in the paper: none, and as FedAvgM's"
        ),
    )

    def notes(self, setup: Setup) -> list[str]:
        lines = []
        if self.weights == "samples":
            lines.append(
                "fednova: if the clients' numbers of steps are proportional to their samples, as "
                "without participation.stragglers, the method equals FedAvg with uniform weights "
                "and a larger step of the server"
            )
        if setup.training.optimizer != "sgd":
            lines.append(
                "fednova: the effective number of steps is unknown for training.optimizer = "
                f"'{setup.training.optimizer}'; changes are divided by the number of steps"
            )
        return lines

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        trained, steps, effective = self.train_and_count(
            fleet, fleet.rows(start), inbox
        )
        self.remember(fleet, trained)
        self.score(fleet, inbox, trained, trained=True)
        # A client may take no step, such as one without a full mini-batch under
        # ``drop_last``. Its change is zero.
        divisor = torch.where(steps > 0, effective, 1.0)
        shares = self.shares(fleet)
        return {
            "change": Mean((start - trained) / divisor, shares),
            "steps": Mean(steps if self.mu else effective, shares),
        }

    def train_and_count(
        self, fleet: Fleet, start: Tensor, inbox: Inbox
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train from ``start`` [n, P] and count the steps.

        Returns:
            The trained models [n, P], and for each client the number of its steps τ_i
            and of its effective steps a_i, [n, 1] each.
        """
        training = fleet.setup.training
        momentum, shrinking = 0.0, 0.0
        if training.optimizer == "sgd":
            momentum = training.momentum
            shrinking = fleet.setup.learning_rate(fleet.round) * self.mu

        def step(context: StepContext) -> None:
            context.optimizer_step(context.gradient())
            variables = context.variables
            variables["steps"] = variables["steps"] + 1
            last = momentum * variables["last"] + 1 - shrinking * variables["effective"]
            variables["effective"] = variables["effective"] + last
            variables["last"] = last

        zero = torch.zeros_like(start[:, :1])
        trained, after = fleet.train_by(
            step,
            start,
            proximal=(self.mu, self.received(fleet, inbox)),
            variables={
                **self.loss_variables(fleet, inbox),
                **dict.fromkeys(("steps", "last", "effective"), zero),
            },
        )
        return trained, after["steps"], after["effective"]

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        change = uplink["steps"] * uplink["change"]
        server["step"] = self.server_momentum * server["step"] + change
        server["model"] = server["model"] - server["step"]


plugin = FedNova
