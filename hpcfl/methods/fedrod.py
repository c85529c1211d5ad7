"""FedRoD: a shared body and generic head trained for all classes alike, and a personal head that adds the
client's own bias.

Chen & Chao, "On bridging generic and personalized federated learning for image classification",
ICLR 2022. (i) CE(g·φ + log π_i, y) on body and generic head g; (ii) CE(stop[g·φ] + r_i·stop[φ], y) on the
personal head r_i, linear and private, or made by a shared hypernetwork H(π_i). ``together``: both in each
step, from the same features; ``separate``: epochs of (i), then epochs of (ii) in plain steps. π_i are exact
shares with a floor, where PFLlib takes log 0 of absent classes. φ is constant in (ii) and g·φ is part of it,
which two known codes each miss.
"""

import copy
from typing import Any, Literal

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.communication.message import Inbox
from hpcfl.fleet import Fleet
from hpcfl.fleet.kernels import Batch
from hpcfl.methods.base import ClientModel, head_of
from hpcfl.methods.fedper import FedPer
from hpcfl.models import parts
from hpcfl.rows.layout import Layout

FLOOR = 1e-12  # the share of an absent class


class HyperHead(nn.Module):
    """A bias-free linear head [K, d] made from a class distribution [K]: linear, ReLU, linear,
    hidden width d."""

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.hidden = nn.Linear(classes, features)
        self.out = nn.Linear(features, classes * features)

    def forward(self, features: Tensor, distribution: Tensor) -> Tensor:
        weight = self.out(functional.relu(self.hidden(distribution)))
        return functional.linear(features, weight.view(-1, features.shape[-1]))


class FedRoD(FedPer):
    """Server: ``model`` [P], the rest of it initial. Down P, up P (linear), P + P_ψ (hyper).

    Client: ``head``, FedPer's name for all that does not travel: the personal head r_i, not the model's
    ``head``, which is the generic one g and travels. ``pre`` and ``post``: (g + r_i)·φ. ``global``: g·φ.
    """

    primary = "post"
    reference = "Chen & Chao, ICLR 2022"
    personal: Literal["linear", "hyper"] = Field(
        "linear", description="the personal head: a private layer, or a hypernetwork's")
    order: Literal["together", "separate"] = Field("together",
                                                   description="train both heads in each step, or in turn")

    def adapt(self, model: nn.Module) -> nn.Module:
        head = head_of(model, self.name)
        linear = self.personal == "linear"
        model.personal = copy.deepcopy(head) if linear else HyperHead(head.in_features, head.out_features)
        return model

    def private(self, layout: Layout) -> slice:
        start = layout.columns("head").stop if self.personal == "linear" else layout.width
        return slice(start, layout.width)

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        features = parts(model).features(batch.x)
        return self.generic(model, features, batch.y, lane) + self.residual(model, features, batch.y, lane)

    def generic_loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """(i) alone."""
        return self.generic(model, parts(model).features(batch.x), batch.y, lane)

    def residual_loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """(ii) alone."""
        return self.residual(model, parts(model).features(batch.x), batch.y, lane)

    def generic(self, model: nn.Module, features: Tensor, y: Tensor, lane: Any) -> Tensor:
        """(i) on body and generic head: cross-entropy balanced by the client's own distribution."""
        return functional.cross_entropy(parts(model).head(features) + lane.distribution.log(), y)

    def residual(self, model: nn.Module, features: Tensor, y: Tensor, lane: Any) -> Tensor:
        """(ii) on the personal head alone: cross-entropy of both heads' sum, features and generic
             logits constant."""
        features = features.detach()
        generic = parts(model).head(features).detach()
        return functional.cross_entropy(generic + self.extra(model, features, lane), y)

    def extra(self, model: nn.Module, features: Tensor, lane: Any) -> Tensor:
        """The personal head's logits r_i·φ."""
        head = model.get_submodule("personal")
        logits: Tensor = head(features) if self.personal == "linear" else head(features, lane.distribution)
        return logits

    def fit(self, fleet: Fleet, rows: Tensor, inbox: Inbox, **how: Any) -> Tensor:
        variables = {"distribution": floored_distribution(fleet.counts).to(rows)}
        if self.order == "together":
            return fleet.train(rows, variables=variables, **how)
        rate = fleet.learning_rate
        generic = fleet.train(rows, params=("body", "head"), loss=self.generic_loss, variables=variables,
                              **how)
        trained, _ = fleet.train_by(
            lambda turn: turn.write(turn.rows() - rate * turn.gradient()), generic, params=("personal",),
            phase="personal", loss=self.residual_loss, variables=variables)
        return trained

    def client_model(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool) -> ClientModel:
        def both(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
            features = parts(model).features(x)
            return parts(model).head(features) + self.extra(model, features, lane)

        return ClientModel(rows, both, {"distribution": floored_distribution(fleet.counts).to(rows)})

    def other_models(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool) -> dict[str, ClientModel]:
        return {} if trained else {"global": ClientModel(self.under_initial_head(inbox))}


def floored_distribution(counts: Tensor) -> Tensor:
    """π [n, K] of training counts ``[n, K]`` with shares of at least FLOOR; uniform without samples."""
    shares = torch.where(counts.sum(dim=1, keepdim=True) > 0, counts, 1.0)
    shares = (shares / shares.sum(dim=1, keepdim=True)).clamp(min=FLOOR)
    return shares / shares.sum(dim=1, keepdim=True)


plugin = FedRoD
