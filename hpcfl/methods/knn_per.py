"""kNN-Per: FedAvg whose predictions are mixed with the labels of the client's nearest
training samples.

Marfoq et al., "Personalized federated learning through local memorization", ICML 2022.
Training is FedAvg's. For predictions a client has a store of its training samples with
their labels and features. The features φ(x_s) are the head's input under its model.
p_kNN is the histogram of the labels of the k samples nearest to φ(x), by the squared
distance δ², with weights exp(−δ²/(d·σ)). The client predicts λ p_kNN + (1 − λ)
softmax(z). The result is ``pre``, before local training; ``global`` scores FedAvg's
prediction.

Probabilities are mixed, as in the authors' code; FL-bench mixes p_kNN with logits. The
authors' script tries every λ on test samples. Here λ is a key, or with ``share =
"tuned"`` differs between clients. It is then the value of 0, 0.1, … 1 with the best
accuracy on the store, where each sample is predicted from all other ones; ties select
the smallest (methods-3.md §16).
δ² is relative to the smallest one, which cancels, so that the weights cannot all
underflow. Of equally distant neighbours the first ones in the store count. No
probability is below ``FLOOR``, because with λ = 1 losses would be infinite.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hpcfl.files import heartbeat
from hpcfl.methods.base import ClientModel, Fleet, Inbox, State, parts, search
from hpcfl.methods.fedavg import FedAvg

FLOOR = 1e-12  # the smallest probability of a class
GRID = 10  # λ is tuned in steps of 1/GRID


class KNNPer(FedAvg):
    """State and traffic of kNN-Per.

    Server: ``model`` [P]. Client: none. Down P, up P. A store has at most ``capacity``
    samples, a random choice in each round. Newcomers with more samples than all other
    clients also store a random choice.
    """

    family = "one global model"
    reference = "Marfoq et al., ICML 2022"
    needs_head = "any"
    short = {"neighbours": 3, "share": "tuned"}
    neighbours: PositiveInt = Field(
        10, description="number k of neighbours (the authors' script 7, FL-bench 5)"
    )
    share: Annotated[float, Field(ge=0, le=1)] | Literal["tuned"] = Field(
        0.5,
        description='weight λ of the neighbours; 0 is FedAvg; "tuned": selected by leave-one-out',
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
        1000, description="maximal number of samples in a client's store (FL-bench 500)"
    )

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        if self.share == 0:
            return ClientModel(rows)
        # The size is the same on all ranks, because bits may depend on it.
        size = min(self.capacity, int(fleet.setup.samples.max()))
        found, labels, held = fleet.outputs(
            rows, compute_features_and_logits, most=size
        )
        width = found.shape[2] - fleet.setup.classes
        features, logits = found[:, :, :width], found[:, :, width:]
        if self.share == "tuned":
            shares = []
            for store in zip(features, labels, held, logits, strict=True):
                shares.append(self.choose_share(*store))
                heartbeat.beat()
        else:
            shares = [self.share] * len(found)
        variables: State = {
            "features": features,
            "labels": labels,
            "held": held,
            "share": torch.tensor(shares).to(found)[:, None],
        }
        return ClientModel(rows, self.predict, variables)

    def predict(self, model: nn.Module, x: Tensor, lane: Any) -> Tensor:
        """Return the logarithms of the mixed probabilities, [batch, K]."""
        features = parts(model).features(x)
        probabilities = parts(model).head(features).softmax(dim=1)
        near = self.compute_votes(
            features,
            store=lane.features,
            labels=lane.labels,
            usable=lane.held,
            classes=probabilities.shape[1],
        )
        mixed = lane.share * near + (1 - lane.share) * probabilities
        # A client may have an empty store.
        mixed = torch.where(lane.held.any(), mixed, probabilities)
        return mixed.clamp(min=FLOOR).log()

    def compute_votes(
        self,
        features: Tensor,
        store: Tensor,
        labels: Tensor,
        usable: Tensor,
        classes: int,
    ) -> Tensor:
        """Return the probabilities p_kNN of samples, [batch, K].

        Args:
            features: The samples' features [batch, d].
            store: The store's features [S, d].
            labels: The store's classes [S].
            usable: Mask of the store's samples that a sample may use, bool [batch, S],
                or [S] if it is the same for all.
            classes: The number K of classes.
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

    def choose_share(
        self,
        features: Tensor,
        labels: Tensor,
        held: Tensor,
        logits: Tensor,
    ) -> float:
        """Return the λ of one client, selected on its store.

        Args:
            features: The store's features [S, d].
            labels: The store's classes [S].
            held: Mask of the store's samples, bool [S]; False for padding at the end.
            logits: The client's logits for the store, [S, K].
        """
        own = int(held.sum())
        if own < 2:  # leaving one out needs at least two samples
            return 0.0
        others = ~torch.eye(own, dtype=torch.bool, device=held.device)
        features, labels, logits = features[:own], labels[:own], logits[:own]
        near = self.compute_votes(
            features,
            store=features,
            labels=labels,
            usable=others,
            classes=logits.shape[1],
        )
        probabilities = logits.softmax(dim=1)
        best, most = 0.0, -1
        for step in range(GRID + 1):
            share = step / GRID
            mixed = share * near + (1 - share) * probabilities
            right = int((mixed.argmax(dim=1) == labels).sum())
            if right > most:
                best, most = share, right
        return best


def compute_features_and_logits(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the head's input and output, [batch, d + K]."""
    features = parts(model).features(x)
    return torch.cat([features, parts(model).head(features)], dim=1)


plugin = KNNPer
