"""kNN-Per: FedAvg, whose prediction is mixed with that of the nearest training samples
of the client.

Marfoq et al., "Personalized federated learning through local memorization", ICML 2022.
Training is FedAvg's. To predict, a client has a store of its training samples, their
features φ(x_s) under its model, which are what enters the head, and their labels. Of
the k nearest to φ(x), by the squared distance δ², p_kNN is the histogram of labels with
weights exp(−δ²/(d·σ)), and its prediction is λ p_kNN + (1 − λ) softmax(z). The result
is read before local training; ``global`` scores FedAvg's prediction.

Probabilities are mixed, as by the authors; FL-bench mixes p_kNN with logits. The
authors' script tries every λ on test samples; here λ is a key, or with ``share =
"tuned"`` each client's own, the one of 0, 0.1, … 1 with which most samples of its store
are right when they are predicted from the others; of equal ones the smallest
(methods-3.md §16). δ² is counted from the least one, which cancels, so that not all
weights can underflow; of neighbours that are equally far those that come first in the
store are taken. No probability is less than ``FLOOR``: with λ = 1 there would be losses
without end.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox
from hpcfl.files import heartbeat
from hpcfl.methods.base import ClientModel, State, head_of, search
from hpcfl.methods.fedavg import FedAvg
from hpcfl.models import parts

FLOOR = 1e-12  # the least probability of a class
GRID = 10  # λ is tuned in steps of a tenth


class KNNPer(FedAvg):
    """Server: ``model`` [P]. Client: nothing. Down P, up P.

    A store has at most ``capacity`` samples, a random choice of each round; where
    newcomers have more than anybody else they choose, too.
    """

    family = "one global model"
    reference = "Marfoq et al., ICML 2022"
    short: ClassVar[Mapping[str, Any]] = {"neighbours": 3, "share": "tuned"}
    neighbours: PositiveInt = Field(
        10, description="number k of neighbours (the authors' script 7, FL-bench 5)"
    )
    share: Annotated[float, Field(ge=0, le=1)] | Literal["tuned"] = Field(
        0.5,
        description='weight λ of the neighbours; 0 is FedAvg, "tuned" by leaving one out',
        json_schema_extra=search(
            [0.1, 0.3, 0.5, 0.7, 0.9], "a part of the authors' grid"
        ),
    )
    scale: float = Field(
        1.0,
        gt=0,
        description="width σ of the weights exp(−δ²/(d·σ))",
        json_schema_extra=search([0.1, 1.0, 10.0, 100.0], "around the authors' script"),
    )
    capacity: PositiveInt = Field(
        1000, description="most samples of a client in its store (FL-bench 500)"
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        head_of(model, self.name)
        return model

    def client_model(
        self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool
    ) -> ClientModel:
        if self.share == 0:
            return ClientModel(rows)
        # The same on all ranks, because bits may depend on a store's size.
        size = min(self.capacity, int(fleet.setup.counts.sum(dim=1).max()))
        found, labels, held = fleet.outputs(rows, features_and_logits, most=size)
        width = found.shape[2] - fleet.setup.classes
        features, logits = found[:, :, :width], found[:, :, width:]
        shares = []
        for client in range(len(fleet.ids)):
            if self.share == "tuned":
                store = features[client], labels[client], held[client]
                shares.append(self.tuned(*store, logits[client]))
                heartbeat.beat()
            else:
                shares.append(self.share)
        share = torch.tensor(shares).to(found)[:, None]
        store_of_all: State = {"features": features, "labels": labels, "held": held}
        return ClientModel(rows, self.prediction, {**store_of_all, "share": share})

    def prediction(self, model: nn.Module, x: Tensor, lane: Any) -> Tensor:
        """Logarithms of the mixed probabilities [batch, K]."""
        features = parts(model).features(x)
        probabilities = parts(model).head(features).softmax(dim=1)
        near = self.votes(
            features,
            lane.features,
            lane.labels,
            lane.held,
            probabilities.shape[1],
        )
        mixed = lane.share * near + (1 - lane.share) * probabilities
        # A client may have nothing in its store.
        mixed = torch.where(lane.held.any(), mixed, probabilities)
        return mixed.clamp(min=FLOOR).log()

    def votes(
        self,
        features: Tensor,
        store: Tensor,
        labels: Tensor,
        usable: Tensor,
        classes: int,
    ) -> Tensor:
        """p_kNN [batch, K] of samples.

        Args:
            features: theirs [batch, d].
            store: those of the store [S, d], whose classes are ``labels`` [S].
            usable: which of the store each sample may take, bool [batch, S], or [S] if
                these are the same for all.
            classes: K.
        """
        squares = features.square().sum(dim=1, keepdim=True)
        squares = squares - 2 * features @ store.T + store.square().sum(dim=1)
        squares = squares.clamp(min=0).masked_fill(~usable, torch.inf)
        ordered, order = squares.sort(dim=1, stable=True)
        nearest = ordered[:, : self.neighbours]
        votes = labels[order[:, : self.neighbours]]
        exponents = (nearest[:, :1] - nearest) / (self.scale * store.shape[1])
        weights = exponents.exp()
        of_class = votes[:, :, None] == torch.arange(classes, device=votes.device)
        histogram = (weights[:, :, None] * of_class).sum(dim=1)
        return histogram / weights.sum(dim=1, keepdim=True)

    def tuned(
        self, features: Tensor, labels: Tensor, held: Tensor, logits: Tensor
    ) -> float:
        """The λ of one client, from its store: [S, d], [S], bool [S], logits [S, K]."""
        own = int(held.sum())
        if own < 2:  # nothing is left where one is left out
            return 0.0
        others = ~torch.eye(own, dtype=torch.bool, device=held.device)
        features, labels, logits = features[:own], labels[:own], logits[:own]
        near = self.votes(features, features, labels, others, logits.shape[1])
        probabilities = logits.softmax(dim=1)
        best, most = 0.0, -1
        for step in range(GRID + 1):
            share = step / GRID
            mixed = share * near + (1 - share) * probabilities
            right = int((mixed.argmax(dim=1) == labels).sum())
            if right > most:
                best, most = share, right
        return best


def features_and_logits(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """What enters the head and what it gives, [batch, d + K]."""
    features = parts(model).features(x)
    return torch.cat([features, parts(model).head(features)], dim=1)


plugin = KNNPer
