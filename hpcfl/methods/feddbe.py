"""FedDBE: FedAvg with a private vector for a client's bias in the features, and a
penalty on the distance of features to their global mean.

Zhang et al., "Eliminating domain bias for federated learning in representation space",
NeurIPS 2023. Let φ be the features, β_i client i's vector, m̂ the mean of φ over a
mini-batch and m̄ the clients' mean feature. A client minimises CE(head(φ + β_i), y) +
(κ/2)·mean over coordinates of (m̂ − m̄)² over body, head and β_i. β_i stays private;
the rest is averaged.

The first round's cohort determines m̄. In the authors' code it is the mean of the last
mini-batches of a first round of all clients, whose models are then discarded. Here
round 1 is FedAvg, without β_i and the penalty, and its models are kept. m̄ is the exact
mean over all samples after training. ``initial = "discard"`` discards the models, too.
The authors' code averages m̂ over mini-batches, but with the weight 1 for the last one
in its experiments. That is the formula here (methods-3.md §7, item 9).
"""

from typing import Any, Literal

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.base import (
    CROSS_ENTROPY,
    Audience,
    Batch,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Layout,
    Mean,
    Message,
    Setup,
    State,
    head_of,
    parts,
    search,
)
from hpcfl.methods.fedproto import compute_features


class PersonalBias(nn.Module):
    """Sum of features and a learned vector, 0 at first."""

    def __init__(self, width: int):
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor) -> Tensor:
        return features + self.vector


class FedDBE(PrivatePart):
    """State and traffic of FedDBE.

    Server: ``model``, a client's whole row, in which the vector is 0; ``mean`` m̄ [d],
    empty before the end of round 1. Client: ``bias`` β_i [d]. Down and up P. In
    addition, d up in round 1 and d down in later rounds, because clients keep only β_i.
    ``pre`` scores the received model with β_i, ``global`` without.
    """

    reference = "Zhang et al., NeurIPS 2023"
    only_synchronous = (
        "its mean feature is computed in the first round, in which all clients start from "
        "the initial model"
    )
    trains = {}  # the head is shared even without a trained body
    kept = "bias"
    kappa: float = Field(
        50.0,
        ge=0,
        description="strength κ of the penalty on the mean feature",
        json_schema_extra=search(
            [0.0, 5.0, 50.0, 500.0], "PFLlib's and the authors', a tenth and ten times"
        ),
    )
    initial: Literal["keep", "discard"] = Field(
        "keep",
        description="keep or discard the models of round 1, which determines the mean",
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        model.personal_bias = PersonalBias(head_of(model, self.name).in_features)
        return model

    def find_private_columns(self, layout: Layout) -> slice:
        return layout.columns("personal_bias")

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        features = parts(model).features(batch.x)
        fit = functional.cross_entropy(predict_with_bias(model, features), batch.y)
        away = (features.mean(dim=0) - lane.mean).square().mean()
        pull: Tensor = lane.regulariser(self.kappa / 2 * away)
        return fit + pull

    def server_state(self, setup: Setup) -> State:
        return {**super().server_state(setup), "mean": torch.zeros(0)}

    def send(self, server: State, audience: Audience) -> Message:
        message = super().send(server, audience)
        if not len(server["mean"]):
            return message
        return {**message, "mean": server["mean"]}

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        mean = inbox["mean"].expand(len(fleet.ids), -1)
        return {"mean": mean}

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        if "mean" in inbox:
            return super().local_train(fleet, rows, inbox)
        return fleet.train(rows, params=("body", "head"), loss=CROSS_ENTROPY)

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        message = super().upload(fleet, inbox, trained)
        if "mean" in inbox:
            return message
        means = fleet.class_means(trained, compute_features)
        counts = fleet.counts.to(means.device)
        total = (counts[..., None] * means).sum(dim=1)
        mean = total / counts.sum(dim=1, keepdim=True).clamp(min=1)
        return {**message, "mean": Mean(mean.float(), self.shares(fleet))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        if "mean" in uplink:
            server["mean"] = uplink["mean"]
            if self.initial == "discard":
                return
        super().aggregate(server, cohort, uplink)

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(rows, predict_biased)


def predict_with_bias(model: nn.Module, features: Tensor) -> Tensor:
    """Return the logits head(φ + β) [batch, K] of ``features`` φ [batch, d]."""
    shifted = model.get_submodule("personal_bias")(features)
    logits: Tensor = parts(model).head(shifted)
    return logits


def predict_biased(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the logits [batch, K] of samples ``x``."""
    return predict_with_bias(model, parts(model).features(x))


plugin = FedDBE
