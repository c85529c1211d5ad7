"""Per-FedAvg: one shared model, trained to perform well after one gradient step on a
client's data.

Fallah, Mokhtari & Ozdaglar, "Personalized federated learning with theoretical
guarantees", NeurIPS 2020. Each local step uses disjoint mini-batches D, D′ (and D″).
Let θ′ = θ − α∇f(θ; D) and g = ∇f(θ′; D′). The first-order variant takes the step θ ← θ
− βg. The Hessian-free one takes θ ← θ − β(g − αc), where c = ∇²f(θ; D″)·g is
approximated by [∇f(θ + δg; D″) − ∇f(θ − δg; D″)]/2δ. A step with two or three
mini-batches makes the same number of passes over the data, so an epoch has as many
steps as in other methods. Steps are plain with every optimiser. A client's model is the
received one after one step of size α on a mini-batch of TRAINING data.

Deviations (methods-2.md §1): the reference code adapts on test data, and twice. δ is
relative to ‖g‖, because δg underflows for tiny gradients.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import PLAIN_STEPS, ClientModel, Fleet, Inbox, StepContext
from hpcfl.methods.fedavg import FedAvg


class PerFedAvg(FedAvg):
    """State and traffic of Per-FedAvg.

    Server: ``model`` [P]. Client: none. Down P, up P. ``pre`` scores the received model
    after one step.
    """

    reference = "Fallah et al., NeurIPS 2020"
    keeps = ("ala", "aggregation")
    short = {"variant": "hessian-free"}
    unheeded = PLAIN_STEPS
    variant: Literal["first-order", "hessian-free"] = Field(
        "first-order", description="ignore the second derivative, or approximate it"
    )
    alpha: float | None = Field(
        None, ge=0, description="size α of the inner step; default: plain_lr"
    )
    beta: float | None = Field(
        None, ge=0, description="size β of the outer step; default: plain_lr"
    )
    delta: float = Field(
        1e-3, gt=0, description="length δ of the difference, relative to max(1, ‖θ‖)"
    )

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        batches = 2 if self.variant == "first-order" else 3
        alpha = self.choose_alpha(fleet)
        beta = fleet.learning_rate if self.beta is None else self.beta

        def outer(rows: Tensor, gradient: Tensor, theta: Tensor) -> None:
            torch.sub(theta, beta * gradient, out=rows)

        def step(context: StepContext) -> None:
            theta = context.rows()
            context.descend(alpha, batch=0)  # to θ′
            if self.variant == "first-order":
                context.apply_elementwise(outer, theta, batch=1)
                return
            direction = context.gradient(batch=1)
            product = self.compute_hessian_product(context, theta, direction)
            context.set_rows(theta - beta * (direction - alpha * product))

        trained, _ = fleet.train_by(
            step,
            rows,
            batches=batches,
            epochs=batches * fleet.setup.training.epochs,
            variables=self.loss_variables(fleet, inbox),
        )
        return trained

    def compute_hessian_product(
        self, context: StepContext, theta: Tensor, direction: Tensor
    ) -> Tensor:
        """Return c = ∇²f(θ; D″)·g [a, P] by a central difference.

        Args:
            context: The step's context.
            theta: The models θ, [a, P].
            direction: The gradients g, [a, P]; c is 0 if g is 0.
        """
        length: Tensor = direction.norm(dim=1, keepdim=True)
        shift: Tensor = self.delta * theta.norm(dim=1, keepdim=True).clamp(min=1)
        along = torch.where(length > 0, direction / length, 0) * shift
        change = context.gradient(theta + along, batch=2) - context.gradient(
            theta - along, batch=2
        )
        return change * length / (2 * shift)

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(rows if trained else self.adapt_models(fleet, inbox, rows))

    def adapt_models(self, fleet: Fleet, inbox: Inbox, rows: Tensor) -> Tensor:
        """Return the models [n, P] after one step of size α from ``rows``, on one
        random training mini-batch.
        """
        alpha = self.choose_alpha(fleet)
        adapted, _ = fleet.train_by(
            lambda context: context.descend(alpha),
            rows,
            epochs=1,
            steps=1,
            phase="adapt",
            variables=self.loss_variables(fleet, inbox),
        )
        return adapted

    def choose_alpha(self, fleet: Fleet) -> float:
        """Return the size α of the inner step."""
        return fleet.learning_rate if self.alpha is None else self.alpha


plugin = PerFedAvg
