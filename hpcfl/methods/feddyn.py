"""FedDyn: each client's loss is corrected by its earlier drift, so that clients' optima
approach the global one.

Acar et al., "Federated learning based on dynamic regularization", ICLR 2021. From θ = w
a client minimises F_i(θ) + α⟨θ, h_i⟩ + (α/2)‖θ − w‖², and then h_i ← h_i + θ_i − w. The
server keeps h̄, the mean of all M clients' h_i. With θ̄ the mean over the cohort S, h̄
← h̄ + (|S|/M)(θ̄ − w) and w ← θ̄ + h̄. Both terms together are (α/2)‖θ − (w − h_i)‖²
and a constant. So local training is FedProx's with the anchor w − h_i, and h_i becomes
θ_i minus that anchor.

The authors' code agrees in three points, other codes do not (methods-3.md §2, item 9).
h_i is in units of parameters, with the paper's ∇L_i(θ_i) = −αh_i. The norm is squared.
Means are uniform, because h̄ would otherwise not be the mean of the h_i. That code has
α_i = αN̄/N_i, with N̄ the mean of the N_i, as here with ``alpha_by = "samples"``; the
paper has one α. Its limit on the gradient's norm includes the linear term;
``training.clip`` limits ∇F_i alone. For α → 0 the method does not become FedAvg,
because the server adds h̄ for every α.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Message,
    Sent,
    Setup,
    State,
    StepContext,
    search,
)
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing


class FedDyn(ServerModel):
    """State and traffic of FedDyn.

    Server: ``model`` w and ``drift`` h̄, [P] each. Client: ``dual`` h_i [P]. Down P, up
    P. The column ``average`` scores θ̄, the mean of the last uploads. ``dual_norm`` is
    ‖h_i‖, which grows for clients that are absent for long.
    """

    family = "one global model"
    reference = "Acar et al., ICLR 2021"
    server_zeros = ("drift",)
    only_synchronous = (
        "its server sums the clients' distances from its model, and a late client started "
        "from an earlier model"
    )
    short = {"alpha_by": "samples"}
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients in averages"
    )
    alpha: float = Field(
        0.01,
        gt=0,
        description="strength α of the dynamic regulariser",
        json_schema_extra=search([0.1, 0.01, 0.001], "Acar et al., ICLR 2021"),
    )
    alpha_by: Literal["equal", "samples"] = Field(
        "equal",
        description="the same α for all clients, or α inversely proportional to a client's samples",
    )

    def client_state(self, setup: Setup) -> State:
        state = super().client_state(setup)
        return {**state, "dual": torch.zeros(setup.layout.width)}

    def send(self, server: State, audience: Audience) -> Message:
        average = server["model"] - server["drift"]
        # The average is only scored and no part of the method, so it counts no floats.
        return {**super().send(server, audience), "average": Sent(average, floats=0)}

    def compute_anchors(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the anchors w − h_i [n, P] of the proximal term."""
        return self.received(fleet, inbox) - fleet.state["dual"]

    def proximal_term(self, fleet: Fleet, inbox: Inbox) -> tuple[float, Tensor]:
        return self.alpha, self.compute_anchors(fleet, inbox)

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        anchor = self.compute_anchors(fleet, inbox)
        if self.alpha_by == "equal":
            trained = super().local_train(fleet, rows, inbox)
        else:
            trained = self.train_by_samples(fleet, rows, inbox, anchor)
        fleet.state["dual"] = trained - anchor
        fleet.record("dual_norm", fleet.state["dual"].norm(dim=1))
        return trained

    def train_by_samples(
        self, fleet: Fleet, rows: Tensor, inbox: Inbox, anchor: Tensor
    ) -> Tensor:
        """Train the clients with different α_i, which a proximal term does not support.

        The first three arguments and the result are those of ``local_train``;
        ``anchor`` [n, P] is the result of ``compute_anchors``.
        """
        mean_samples = fleet.setup.samples.sum() / fleet.setup.clients
        alpha = self.alpha * mean_samples / fleet.samples.clamp(min=1)

        def step(context: StepContext) -> None:
            alpha = context.variables["alpha"]
            away = context.rows() - context.variables["anchor"]
            context.optimizer_step(context.gradient() + alpha * away)
            distances = mixing.sum_rows(away.square())
            context.regulariser(alpha[:, 0] / 2 * distances)

        trained, _ = fleet.train_by(
            step,
            rows,
            variables={
                **self.loss_variables(fleet, inbox),
                "anchor": anchor,
                "alpha": alpha[:, None].to(anchor),
            },
        )
        return trained

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        share = cohort.share_of_clients
        average = uplink["model"]
        server["drift"] = server["drift"] + share * (average - server["model"])
        server["model"] = average + server["drift"]

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        models = super().other_models(fleet, inbox, rows, trained)
        if not trained:
            models["average"] = ClientModel(inbox["average"])
        return models


plugin = FedDyn
