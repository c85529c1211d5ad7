"""SCAFFOLD: FedAvg with control variates, which correct the bias of each client's
steps.

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning",
ICML 2020, Algorithm 1 with option II. The server has the model x and a control c, a
client its control c_i; all controls are initially 0. From y = x a client takes K plain
steps y ← y − η(∇F_i(y) − c_i + c) with every optimiser. Then it computes c_i⁺ = c_i − c
+ (x − y)/(Kη). The server computes x ← x + η_g·mean(y − x) and c ← c + |S|/M·mean(c_i⁺
− c_i). Means over the cohort S are uniform as in the paper, unless ``weights`` is
"samples".
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
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


class Scaffold(ServerModel):
    """State and traffic of SCAFFOLD.

    Server: ``model`` x, ``control`` c, [P] each. Client: ``control`` c_i [P]. Down 2P,
    up 2P.
    """

    family = "one global model"
    reference = "Karimireddy et al., ICML 2020"
    keeps = ("ala",)
    server_zeros = ("control",)
    only_synchronous = (
        "its controls are changes of the server's control in one round, and a late client "
        "started from an earlier one"
    )
    unheeded = ("optimizer", "momentum", "weight_decay")
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients in averages"
    )
    server_lr: float = Field(
        1.0,
        ge=0,
        description="step η_g of the server; 1 is the average",
        json_schema_extra=search(
            [0.1, 0.5, 1.0], "no range in the paper: its 1 and smaller steps"
        ),
    )

    def client_state(self, setup: Setup) -> State:
        return {
            **super().client_state(setup),
            "control": torch.zeros(setup.layout.width),
        }

    def send(self, server: State, audience: Audience) -> Message:
        return {**super().send(server, audience), "control": server["control"]}

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        trained, change = self.train_corrected(fleet, fleet.rows(start), inbox)
        fleet.state["control"] = fleet.state["control"] + change
        self.remember(fleet, trained)
        self.score(fleet, inbox, trained, trained=True)
        return {
            **self.upload(fleet, inbox, trained),
            "control": Mean(change, self.shares(fleet), change_of="control"),
        }

    def train_corrected(
        self, fleet: Fleet, start: Tensor, inbox: Inbox
    ) -> tuple[Tensor, Tensor]:
        """Train with corrected steps.

        Args:
            fleet: The n clients.
            start: The models x, [n, P].
            inbox: The message with the server's control c, [P].

        Returns:
            The trained models y and the changes c_i⁺ − c_i, [n, P] each; no change for
            a client without a step, such as one without a full mini-batch under
            ``drop_last``.
        """
        rate = fleet.learning_rate
        control = inbox["control"]

        def descend(rows: Tensor, gradient: Tensor, correction: Tensor) -> None:
            rows -= (gradient + correction).mul_(rate)

        def step(context: StepContext) -> None:
            context.apply_elementwise(
                descend, context.variables["correction"], clip=True
            )
            context.variables["steps"] = context.variables["steps"] + 1

        trained, after = fleet.train_by(
            step,
            start,
            variables={
                **self.loss_variables(fleet, inbox),
                "correction": control - fleet.state["control"],
                "steps": torch.zeros_like(start[:, :1]),
            },
        )
        steps = after["steps"]
        change = (start - trained) / (rate * steps) - control
        return trained, torch.where(steps > 0, change, 0)

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        share = cohort.share_of_clients
        server["model"] = torch.lerp(server["model"], uplink["model"], self.server_lr)
        server["control"] = server["control"] + share * uplink["control"]


plugin = Scaffold
