"""FedProto: clients exchange the mean features of their classes, the prototypes,
instead of weights.

Tan et al., "FedProto: federated prototype learning across heterogeneous clients", AAAI
2022. Client i minimises CE + λ·mean over batch and coordinates of (f(x) − C_y)², with f
the features. Samples of classes without a prototype add nothing. Then it sends its
class means, computed in one extra pass in evaluation mode. C_j becomes their mean over
the clients that hold class j. ``pre`` and ``post`` score the model that predicts the
class of the nearest prototype. Before the first exchange they score the model's own
prediction.

The codes differ in two points (methods-1.md §15, item 9). Here the mean over clients is
unweighted; ``weights = "samples"`` weights by samples of the class. A class absent from
the cohort keeps its prototype, and a mask marks the classes with a prototype.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods.base import (
    Audience,
    Batch,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Method,
    Sent,
    Setup,
    State,
    parts,
    search,
)


class FedProto(Method):
    """State and traffic of FedProto.

    Server: ``prototypes`` C [K, d]; ``present``, bool [K], the classes with a
    prototype. Client: ``model`` [P]. Down d for each class with a prototype, up d for
    each class held; down and up also one bit for each class. The column ``classifier``
    scores the trained model's own prediction.
    """

    primary = "post"
    family = "prototypes, no weights"
    reference = "Tan et al., AAAI 2022"
    needs_head = "any"
    client_models = ("model",)
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients in a class's prototype"
    )
    lam: float = Field(
        1.0,
        ge=0,
        description="strength λ of the distance to prototypes in the loss (0.1 CIFAR-10); "
        "0 trains as Local",
        json_schema_extra=search([0.1, 1.0, 10.0], "the authors' two, and ten times"),
    )

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        if not self.lam:
            return super().loss(model, batch, lane)
        return compute_aligned_loss(model, batch, lane, self.lam)

    def server_state(self, setup: Setup) -> State:
        return make_empty_prototypes(setup)

    def send(self, server: State, audience: Audience) -> Message:
        present = server["present"]
        bits = len(present)
        return {
            "prototypes": select_prototypes(server),
            "present": Sent(present, floats=bits / 32),
        }

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return fleet.state["model"]

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(
            rows, predict_by_prototypes, make_prototype_variables(fleet, inbox)
        )

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        return {"classifier": ClientModel(rows)} if trained else {}

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        variables = make_prototype_variables(fleet, inbox)
        trained = fleet.train(start, variables=variables)
        fleet.state["model"] = trained
        self.score(fleet, inbox, trained, trained=True)
        return self.upload(fleet, fleet.class_means(trained, compute_features))

    def upload(self, fleet: Fleet, means: Tensor) -> Message:
        """Return the clients' message.

        Args:
            fleet: The n clients.
            means: Their class means [n, K, d]. Only clients that hold a class
                contribute to its mean.
        """
        held = fleet.counts > 0
        weights = held.long() if self.weights == "uniform" else fleet.counts
        _, bits, width = means.shape
        floats = held.sum(dim=1) * width + bits / 32
        return {"prototypes": Mean(means, weights, floats=floats)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        replace_prototypes(server, cohort, uplink["prototypes"])


def make_empty_prototypes(setup: Setup) -> State:
    """Return the server's state before the first exchange.

    Returns:
        ``prototypes`` [K, d] and ``present``, bool [K], the classes with a prototype.
    """
    width = parts(setup.template()).head.in_features
    return {
        "prototypes": torch.zeros(setup.classes, width),
        "present": torch.zeros(setup.classes, dtype=torch.bool),
    }


def select_prototypes(server: State) -> Sent:
    """Return the prototypes as one row [K·d]; only existing prototypes count as floats."""
    prototypes = server["prototypes"]
    floats = int(server["present"].sum()) * prototypes.shape[1]
    return Sent(prototypes.flatten(), floats)


def replace_prototypes(server: State, cohort: Cohort, means: Tensor) -> None:
    """Replace the prototypes of the classes that the cohort holds by its ``means`` [K,
    d].
    """
    held = (cohort.counts > 0).any(dim=0)
    server["prototypes"] = torch.where(held[:, None], means, server["prototypes"])
    server["present"] = server["present"] | held


def compute_aligned_loss(
    model: nn.Module, batch: Batch, lane: Any, lam: float
) -> Tensor:
    """Return the cross-entropy of ONE client plus the distance of its features from the
    prototypes.

    The distance is λ times the mean over batch and coordinates of (f(x) − C_y)².

    Args:
        model: The client's module.
        batch: The mini-batch.
        lane: The client's lane, with the variables of ``make_prototype_variables``.
        lam: The strength λ.
    """
    features = parts(model).features(batch.x)
    logits = parts(model).head(features)
    squares = (features - lane.prototypes[batch.y]).square()
    away: Tensor = squares * lane.present[batch.y][:, None]
    pull: Tensor = lane.regulariser(lam * away.mean())
    return functional.cross_entropy(logits, batch.y) + pull


def make_prototype_variables(fleet: Fleet, inbox: Inbox) -> State:
    """Return the received prototypes [n, K, d] and ``present`` [n, K] as variables of a
    loss or prediction.
    """
    clients = len(fleet.ids)
    classes = fleet.setup.classes
    prototypes = inbox["prototypes"].view(1, classes, -1)
    return {
        "prototypes": prototypes.expand(clients, classes, -1),
        "present": inbox["present"].expand(clients, -1),
    }


def compute_features(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the features f(x) [batch, d]."""
    return parts(model).features(x)


def predict_by_prototypes(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the negative squared distances to the prototypes as logits [batch, K].

    Classes without a prototype have the smallest logits. Without any prototype the
    model's own logits are returned.
    """
    features = parts(model).features(x)
    near = -(features[:, None] - lane.prototypes).square().sum(dim=2)
    behind = near.amin(dim=1, keepdim=True) - 1
    near = torch.where(lane.present, near, behind)
    return torch.where(lane.present.any(), near, parts(model).head(features))


plugin = FedProto
