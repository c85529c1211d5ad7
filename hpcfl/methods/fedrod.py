"""FedRoD: a shared body and generic head trained with a class-balanced loss, and a
personal head for each client.

Chen & Chao, "On bridging generic and personalized federated learning for image
classification", ICLR 2022. Let φ be the features, π_i the client's class distribution
and stop[·] a constant in the gradient. A client minimises (i) CE(g·φ + log π_i, y) over
the body and the generic head g, a loss that balances the classes. It minimises (ii)
CE(stop[g·φ] + r_i·stop[φ], y) over the personal head r_i, whose logits are added to
those of g. r_i is linear and private, or the output of a shared hypernetwork H(π_i)
with P_ψ parameters. With ``order = "together"`` each step uses both losses at the same
features. With ``"separate"`` all epochs of (i) precede those of (ii), which have plain
steps.

π_i are exact shares with a floor; PFLlib takes log 0 for absent classes. In (ii) φ is
constant and g·φ is part of the sum; each of these is missing in one known code
(methods-2.md §8, item 9).
"""

import copy
from typing import Any, Literal

import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.base import (
    PLAIN_STEPS,
    Batch,
    ClientModel,
    Fleet,
    Inbox,
    Layout,
    State,
    head_of,
    parts,
)
from hpcfl.methods.overlays.class_wise import compute_true_distribution

FLOOR = 1e-12  # smallest share, for absent classes


class HyperHead(nn.Module):
    """A bias-free linear head [K, d], computed from a class distribution [K] by two
    layers of width d.
    """

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.hidden = nn.Linear(classes, features)
        self.out = nn.Linear(features, classes * features)

    def forward(self, features: Tensor, distribution: Tensor) -> Tensor:
        weight = self.out(functional.relu(self.hidden(distribution)))
        return functional.linear(features, weight.view(-1, features.shape[-1]))


class FedRoD(PrivatePart):
    """State and traffic of FedRoD.

    Server: ``model``, a client's whole row, with the initial personal head if it is
    linear. Client: a linear r_i, under FedPer's name ``head`` for the private columns.
    The model's module ``head`` is the generic g, which is sent. Down and up P with
    linear r_i, P + P_ψ with a hypernetwork. ``pre`` and ``post`` score (g + r_i)·φ,
    ``global`` g·φ.
    """

    primary = "post"
    trains = {}  # the generic head is shared even without a trained body
    reference = "Chen & Chao, ICLR 2022"
    short = {"personal": "hyper"}
    personal: Literal["linear", "hyper"] = Field(
        "linear",
        description="personal head: a private linear layer, or the output of a hypernetwork",
    )
    order: Literal["together", "separate"] = Field(
        "together", description="train both heads in each step, or one after the other"
    )

    def list_unheeded(self) -> tuple[str, ...]:
        return PLAIN_STEPS if self.order == "separate" else ()

    def adapt(self, model: nn.Module) -> nn.Module:
        head = head_of(model, self.name, trained=True)
        linear = self.personal == "linear"
        model.personal = (
            copy.deepcopy(head)
            if linear
            else HyperHead(head.in_features, head.out_features)
        )
        return model

    def find_private_columns(self, layout: Layout) -> slice:
        start = (
            layout.columns("head").stop if self.personal == "linear" else layout.width
        )
        return slice(start, layout.width)

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        features = parts(model).features(batch.x)
        return self.compute_generic_term(
            model, features, batch.y, lane
        ) + self.compute_residual_term(model, features, batch.y, lane)

    def compute_generic_loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """Return loss (i) on a mini-batch."""
        return self.compute_generic_term(
            model, parts(model).features(batch.x), batch.y, lane
        )

    def compute_residual_loss(
        self, model: nn.Module, batch: Batch, lane: Any
    ) -> Tensor:
        """Return loss (ii) on a mini-batch."""
        return self.compute_residual_term(
            model, parts(model).features(batch.x), batch.y, lane
        )

    def compute_generic_term(
        self,
        model: nn.Module,
        features: Tensor,
        y: Tensor,
        lane: Any,
    ) -> Tensor:
        """Return loss (i), the cross-entropy balanced by the client's distribution.

        Args:
            model: The client's module.
            features: The features [batch, d].
            y: The labels [batch].
            lane: The client's lane, with ``lane.distribution`` [K].
        """
        return functional.cross_entropy(
            parts(model).head(features) + lane.distribution.log(), y
        )

    def compute_residual_term(
        self,
        model: nn.Module,
        features: Tensor,
        y: Tensor,
        lane: Any,
    ) -> Tensor:
        """Return loss (ii), the cross-entropy of the sum of both heads' logits, with
        constant features and generic logits.

        The arguments are those of ``compute_generic_term``.
        """
        features = features.detach()
        generic = parts(model).head(features).detach()
        return functional.cross_entropy(
            generic + self.predict_residual(model, features, lane), y
        )

    def predict_residual(self, model: nn.Module, features: Tensor, lane: Any) -> Tensor:
        """Return the personal head's logits r_i·φ [batch, K]."""
        head = model.get_submodule("personal")
        logits: Tensor = (
            head(features)
            if self.personal == "linear"
            else head(features, lane.distribution)
        )
        return logits

    def predict_by_both_heads(self, model: nn.Module, x: Tensor, lane: Any) -> Tensor:
        """Return the sum of both heads' logits, (g + r_i)·φ [batch, K]."""
        features = parts(model).features(x)
        generic = parts(model).head(features)
        return generic + self.predict_residual(model, features, lane)

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        """Return the client's ``distribution`` π [n, K]."""
        distribution = compute_floored_distribution(fleet.counts)
        return {"distribution": distribution.float().to(fleet.resources.device)}

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        if self.order == "together":
            return super().local_train(fleet, rows, inbox)
        variables = self.loss_variables(fleet, inbox)
        rate = fleet.learning_rate
        generic = fleet.train(
            rows,
            params=("body", "head"),
            loss=self.compute_generic_loss,
            variables=variables,
        )
        trained, _ = fleet.train_by(
            lambda context: context.descend(rate),
            generic,
            params=("personal",),
            phase="personal",
            loss=self.compute_residual_loss,
            variables=variables,
        )
        return trained

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(
            rows, self.predict_by_both_heads, self.loss_variables(fleet, inbox)
        )


def compute_floored_distribution(counts: Tensor) -> Tensor:
    """Return π [n, K] of training ``counts`` [n, K], with shares of at least FLOOR.

    A client without samples has uniform shares.
    """
    shares = compute_true_distribution(counts).clamp(min=FLOOR)
    return shares / shares.sum(dim=1, keepdim=True)


plugin = FedRoD
