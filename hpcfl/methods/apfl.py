"""APFL: each client mixes its personal model and its copy of the global model with a
learned weight.

Deng, Kamani & Mahdavi, "Adaptive personalized federated learning", 2020, Algorithm 1.
Client i has w_i, its copy of the global model, a personal model v_i and a weight α_i.
It uses v̄_i = α_i v_i + (1 − α_i) w_i for predictions; the method's result is v̄_i
after training. Let g = ∇F_i(v̄_i). On each mini-batch w_i takes a step of the
experiment's optimiser along ∇F_i(w_i). v_i takes the step v_i ← v_i − ηα_i g, with the
gradient of F_i(v̄_i) by v_i. The weight takes the step α_i ← α_i − η⟨v_i − w_i, g⟩,
clipped to [0, 1]. All three steps use the values before the step. v_i and α_i take
plain steps with every optimiser. Both gradients of a step update the client's one set
of batch-norm statistics. The server averages w_i.

Deviations (methods-2.md §12): the authors' code moves α_i only in the first step of a
round, to save time. It also adds 0.02·α_i to its gradient, which favours the global
model. Here α_i moves in each step and without that term, as in the paper's equation
(10). The paper averages the w_i uniformly. Here clients are weighted by samples, as in
FedAvg, so that a comparison isolates the method. ``weights = "uniform"`` gives the
paper's mean.
"""

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import (
    PLAIN_STEPS,
    ClientModel,
    Fleet,
    Inbox,
    Setup,
    State,
    StepContext,
    search,
)
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing


class APFL(ServerModel):
    """State and traffic of APFL.

    Server: ``model`` w [P]. Client: ``personal`` v_i [P], ``alpha`` α_i [1]. Down P, up
    P (w_i).
    """

    primary = "post"
    client_models = inherited = ("personal",)
    family = "personal beside global"
    reference = "Deng et al., arXiv 2003.13461"
    unheeded = PLAIN_STEPS
    alpha: float = Field(
        0.5,
        ge=0,
        le=1,
        description="initial weight α of the personal model; 0 is FedAvg, 1 is Local",
        json_schema_extra=search([0.25, 0.5, 0.75], "Deng et al., 2020"),
    )
    adaptive: bool = Field(True, description="learn α; false: α is constant")

    def client_state(self, setup: Setup) -> State:
        alpha = torch.full((1,), self.alpha)
        return {**super().client_state(setup), "alpha": alpha}

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        rate = fleet.learning_rate

        def step(context: StepContext) -> None:
            own = context.rows()
            personal = context.variables["personal"]
            alpha = context.variables["alpha"]
            gradient = context.gradient()
            slope = context.gradient(torch.lerp(own, personal, alpha))
            context.optimizer_step(gradient)
            context.variables["personal"] = personal - rate * alpha * slope
            if self.adaptive:
                products = (personal - own) * slope
                moved = alpha - rate * mixing.sum_rows(products)[:, None]
                context.variables["alpha"] = moved.clamp(0, 1)

        variables = {
            **self.loss_variables(fleet, inbox),
            "personal": fleet.state["personal"],
            "alpha": fleet.state["alpha"],
        }
        trained, after = fleet.train_by(step, rows, variables=variables)
        fleet.state["personal"] = after["personal"]
        fleet.state["alpha"] = after["alpha"]
        return trained

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        personal = fleet.state["personal"]
        mixed = torch.lerp(fleet.rows(rows), personal, fleet.state["alpha"])
        return ClientModel(mixed)


plugin = APFL
