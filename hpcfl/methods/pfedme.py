"""pFedMe: each client computes a proximal point θ of its copy w_i of the shared model,
and moves w_i towards θ.

Dinh, Tran & Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS
2020. For each mini-batch a client takes K steps θ ← θ − η_p(∇f(θ) + λ(θ − w_i) + μθ).
Then it sets w_i ← w_i − ηλ(w_i − θ), with η = ``training.plain_lr``. In a round, θ and
w_i both start at w and continue from one mini-batch to the next. The client uploads
w_i, and the server computes w ← (1 − β)w + βΣp_i w_i. Steps are plain with every
optimiser.

In the reference code (methods-2.md §4, item 9) the personal model shares its memory
with w_i, so that w_i is scored. All clients train there, though only a cohort is
averaged. Here θ, which is scored, is a separate row, and only the cohort trains.
"""

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from hpcfl.methods.base import (
    PLAIN_STEPS,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Setup,
    State,
    StepContext,
    search,
)
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing


class PFedMe(ServerModel):
    """State and traffic of pFedMe.

    Server: ``model`` [P]. Client: ``personal`` [P], θ after its last round. Down P, up
    P (w_i).
    """

    primary = "post"
    client_models = inherited = ("personal",)
    family = "personal beside global"
    reference = "Dinh et al., NeurIPS 2020"
    short = {"lam": 5.0}
    unheeded = PLAIN_STEPS
    lam: float = Field(
        15.0,
        ge=0,
        description="strength λ of the proximal term between θ and w_i; "
        "0 never moves w_i",
        json_schema_extra=search(
            [0.0, 0.1, 1.0, 5.0, 10.0, 15.0, 20.0, 50.0], "FedALA"
        ),
    )
    personal_lr: float = Field(
        0.01,
        gt=0,
        description="learning rate η_p of θ (FedALA 0.01, the authors 0.09)",
        json_schema_extra=search([0.1, 0.01, 0.001, 0.0001], "FedALA"),
    )
    inner_steps: PositiveInt = Field(
        5,
        description="steps K on θ for each mini-batch",
        json_schema_extra=search([1, 5, 10, 20], "FedALA"),
    )
    beta: float = Field(
        1.0,
        ge=0,
        description="step β of the server; 1 is the average, larger values extrapolate",
        json_schema_extra=search([0.1, 0.5, 0.9, 1.0], "FedALA"),
    )
    mu: float = Field(
        0.0,
        ge=0,
        description="weight decay μ of θ, 0.001 in the reference code and not in the paper",
    )

    @model_validator(mode="after")
    def _inner_steps_converge(self) -> "PFedMe":
        factor = self.personal_lr * (self.lam + self.mu)
        if factor >= 2:
            raise ValueError(
                f"personal_lr · (lam + mu) = {factor:g} must be below 2, or θ diverges"
            )
        return self

    def notes(self, setup: Setup) -> list[str]:
        largest_rate = max(map(setup.plain_rate, range(1, setup.rounds + 1)))
        factor = largest_rate * self.lam
        if factor <= 1:
            return []
        return [
            f"pfedme: lr · lam = {factor:g} is above 1, so w_i overshoots θ in every step; it "
            "diverges above 2"
        ]

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        rate = fleet.learning_rate * self.lam

        def descend(theta: Tensor, gradient: Tensor, local: Tensor) -> None:
            descent = (theta - local).mul_(self.lam).add_(gradient)
            if self.mu:
                descent += self.mu * theta
            theta -= descent.mul_(self.personal_lr)

        def step(context: StepContext) -> None:
            local = context.variables["local"]
            for _ in range(self.inner_steps - 1):
                context.apply_elementwise(descend, local)
            theta = context.rows()
            context.apply_elementwise(descend, local)
            terms = (theta - local).square_().mul_(self.lam)
            if self.mu:
                terms += self.mu * theta.square()
            context.regulariser(mixing.sum_rows(terms) / 2)
            context.variables["local"] = torch.lerp(local, context.rows(), rate)

        variables = {**self.loss_variables(fleet, inbox), "local": fleet.rows(rows)}
        fleet.state["personal"], after = fleet.train_by(step, rows, variables=variables)
        return after["local"]

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        old = server["model"]
        super().aggregate(server, cohort, uplink)
        server["model"] = torch.lerp(old, server["model"], self.beta)

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(fleet.state["personal"])


plugin = PFedMe
