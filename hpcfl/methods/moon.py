"""MOON: FedAvg with a contrastive loss, which moves features towards the global model's
and away from those of the client's last model.

Li, He & Song, "Model-contrastive federated learning", CVPR 2021. Let z, z_w and z_i be
the features of the model in training, of the received model and of the client's model
after its last round. A client minimises CE + μ·ℓ, ℓ = −log(exp(sim(z, z_w)/τ) /
(exp(sim(z, z_w)/τ) + exp(sim(z, z_i)/τ))). sim is the cosine, and z_w and z_i are
constant. The result is ``pre``, before local training.

The paper compares the outputs of a projection head of two layers between body and head.
Here, as in comparisons with the same model for all methods, it compares the head's
input. The default μ = 5 is the paper's, tuned for the outputs of the projection head
(methods-2.md §12), so a comparison must tune μ again. A client's model before
its first round is the initial one. All three models use the batch-norm statistics of
the one in training.
"""

from typing import Any

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods.base import (
    Batch,
    Fleet,
    Inbox,
    Setup,
    State,
    evaluate_at,
    parts,
    search,
)
from hpcfl.methods.fedavg import FedAvg


class Moon(FedAvg):
    """State and traffic of MOON.

    Server: ``model`` [P]. Client: ``last`` [P], its model after its last round. Down P,
    up P.
    """

    reference = "Li et al., CVPR 2021"
    keeps = ("ala", "aggregation")
    last_model = "last"
    mu: float = Field(
        5.0,
        ge=0,
        description="weight μ of the contrast (1 CIFAR-100); 0 is FedAvg",
        json_schema_extra=search([0.1, 1.0, 5.0, 10.0], "Li et al., CVPR 2021"),
    )
    tau: float = Field(
        0.5,
        gt=0,
        description="temperature τ of the contrast",
        json_schema_extra=search(
            [0.1, 0.5, 1.0], "no range in the paper: around the default"
        ),
    )

    def notes(self, setup: Setup) -> list[str]:
        if "mu" in self.model_fields_set:
            return []
        return [
            f"moon: μ = {self.mu:g} was tuned with the paper's projection head, which is left "
            "out here; choose method.mu yourself (the paper tries 0.1, 1, 5 and 10)"
        ]

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        if not self.mu:
            return super().loss(model, batch, lane)
        features = parts(model).features(batch.x)
        fit = functional.cross_entropy(parts(model).head(features), batch.y)
        similarities = []
        for row in (lane.received, lane.last):
            others = evaluate_at(
                model, row, lambda other: parts(other).features(batch.x)
            )
            similarity = functional.cosine_similarity(features, others.detach())
            similarities.append(similarity)
        similar = torch.stack(similarities, dim=1)
        # Softplus is equivalent, but its last bits depend on the number of clients side
        # by side.
        contrast = -(similar / self.tau).log_softmax(dim=1)[:, 0].mean()
        total: Tensor = fit + lane.regulariser(self.mu * contrast)
        return total

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        return {
            **super().loss_variables(fleet, inbox),
            "received": fleet.rows(self.received(fleet, inbox)),
            "last": fleet.state["last"],
        }


plugin = Moon
