"""FedProto: clients exchange the mean features of their classes instead of weights.

Tan et al., "FedProto: federated prototype learning across heterogeneous clients", AAAI 2022. Client
i minimises CE + λ·mean over batch and coordinates of (f(x) − C_y)², samples of classes without a prototype
adding nothing, and then sends its class means, taken in one extra pass in evaluation mode; C_j is their mean
over the clients that hold j. Choices where codes differ (methods-1.md §15, item 9): the mean is unweighted,
``weights = "samples"`` weights by samples of the class; classes that nobody of the cohort holds keep their
prototype, and a mask says which classes have one. ``pre`` and ``post`` predict the nearest prototype, before
the first exchange as the classifier does.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.communication.message import Field as Sent
from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.fleet import Fleet
from hpcfl.fleet.kernels import Batch
from hpcfl.methods.base import Audience, ClientModel, Cohort, Method, Setup, State, head_of
from hpcfl.models import parts


class FedProto(Method):
    """Server: ``prototypes`` [K, d], ``present`` [K]. Client: ``model`` [P]. Down K·d, up d for each class
    held, a bit a class.

    Also scored: ``classifier``, the trained model's own prediction.
    """

    primary = "post"
    family = "prototypes instead of weights"
    reference = "Tan et al., AAAI 2022"
    weights: Literal["samples", "uniform"] = Field("uniform",
                                                   description="weights of clients in a class's prototype")
    lam: float = Field(1.0, ge=0,
                       description="strength λ of the distance to prototypes in the loss (0.1 CIFAR-10); "
                                   "0 trains as Local")

    def adapt(self, model: nn.Module) -> nn.Module:
        head_of(model, self.name)
        return model

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        if not self.lam:
            return super().loss(model, batch, lane)
        features = parts(model).features(batch.x)
        away: Tensor = (features - lane.prototypes[batch.y]).square() * lane.present[batch.y][:, None]
        return functional.cross_entropy(parts(model).head(features), batch.y) + self.lam * away.mean()

    def server_state(self, setup: Setup) -> State:
        width = parts(setup.build()).head.in_features
        return {"prototypes": torch.zeros(setup.classes, width),
                "present": torch.zeros(setup.classes, dtype=torch.bool)}

    def client_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def send(self, server: State, audience: Audience) -> Message:
        there, classes = int(server["present"].sum()), len(server["present"])
        return {"prototypes": Sent(server["prototypes"].flatten(), there * server["prototypes"].shape[1]),
                "present": Sent(server["present"], classes / 32)}

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return fleet.state["model"]

    def client_model(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool) -> ClientModel:
        return ClientModel(rows, nearest, self._known(fleet, inbox))

    def other_models(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool) -> dict[str, ClientModel]:
        return {"classifier": ClientModel(rows)} if trained else {}

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        fleet.state["model"] = fleet.train(start, variables=self._known(fleet, inbox))
        self.score(fleet, inbox, fleet.state["model"], trained=True)
        return self.reply(fleet, fleet.class_means(fleet.state["model"], features))

    def reply(self, fleet: Fleet, means: Tensor) -> Message:
        """What goes up: the clients' class means [n, K, d], which count where a client holds the class."""
        held = fleet.counts > 0
        return {"prototypes": Mean(means, held.long() if self.weights == "uniform" else fleet.counts,
                                   floats=held.sum(dim=1) * means.shape[2] + means.shape[1] / 32)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        held = (cohort.counts > 0).any(dim=0)
        server["prototypes"] = torch.where(held[:, None], uplink["prototypes"], server["prototypes"])
        server["present"] = server["present"] | held

    def _known(self, fleet: Fleet, inbox: Inbox) -> State:
        """The prototypes as variables of every client."""
        shape = (len(fleet.ids), fleet.setup.classes, -1)
        present = inbox["present"].expand(len(fleet.ids), -1)
        return {"prototypes": inbox["prototypes"].view(1, fleet.setup.classes, -1).expand(shape),
                "present": present}


def features(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """f(x) [batch, d]."""
    return parts(model).features(x)


def nearest(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Minus the squared distances to the prototypes [batch, K], those absent behind all others; without
    any, the logits."""
    found = parts(model).features(x)
    near = -(found[:, None] - lane.prototypes).square().sum(dim=2)
    near = torch.where(lane.present, near, near.amin(dim=1, keepdim=True) - 1)
    return torch.where(lane.present.any(), near, parts(model).head(found))


plugin = FedProto
