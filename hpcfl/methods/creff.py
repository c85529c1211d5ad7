"""CReFF: FedAvg with a head that the server retrains on class-balanced synthetic
features.

Shang et al., "Federated learning on heterogeneous and long-tailed data via classifier
re-training with federated features", IJCAI 2022. The server keeps a retrained head h̃
and n_z synthetic features Z_c of each class. A client sends FedAvg's model. For each
class c that it holds, it also sends the mean gradient of the cross-entropy with respect
to h̃ on top of the received body. G_c is their plain mean over these clients. The
server moves Z until its gradients have the same direction: min_Z Σ_c Σ_rows 1 −
cos(∂CE(Z_c; h̃), G_c), where the bias counts as one row. It then trains a fresh head on
Z, the next h̃. The next round of FedAvg starts from w with its OWN head.

Like FedNH's code and unlike the authors', there is no differentiable augmentation.
Unlike FedNH's, the head has a bias exactly where the model's has one. The features of
classes absent from the cohort stay unchanged.
"""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hpcfl.clients import synthetic
from hpcfl.clients.synthetic import descend
from hpcfl.experiment.sections import Training
from hpcfl.methods.base import (
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Setup,
    State,
    search,
)
from hpcfl.methods.fedavg import ServerModel

DRAWS = 10  # random draws of samples of a class; their gradients are averaged
GUARD = 1e-6  # keeps a cosine finite for a zero gradient


class CReFF(ServerModel):
    """State and traffic of CReFF.

    Server: ``model`` [P]; ``head`` h̃ [P_h]; ``features`` Z [K·n_z, d], sorted by
    class. Client: none. Down P + P_h; up P, and P_h for each class held. ``pre`` and
    ``global`` score the body under h̃, ``post`` FedAvg's local model.
    """

    family = "one global model"
    reference = "Shang et al., IJCAI 2022"
    needs_head = "trained"
    keeps = ("ala",)
    short = {
        "features_each": 5,
        "match_steps": 3,
        "head_epochs": 3,
    }
    features_each: PositiveInt = Field(
        100,
        le=10_000,
        description="number n_z of synthetic features of each class",
    )
    match_steps: PositiveInt = Field(
        100, description="number of steps on the features per round"
    )
    features_lr: float = Field(
        0.01,
        gt=0,
        description="learning rate η_z of the features (FedNH 0.01, the authors 0.1)",
        json_schema_extra=search([0.01, 0.1], "FedNH's and the authors'"),
    )
    head_epochs: PositiveInt = Field(
        300, description="epochs of the fresh head on the features"
    )
    head_lr: float = Field(
        0.01,
        gt=0,
        description="learning rate η_n of the fresh head",
        json_schema_extra=search(
            [0.001, 0.01, 0.1],
            "no range in the paper: a tenth and ten times the default",
        ),
    )
    class_batch: PositiveInt = Field(
        64,
        description="maximal number of samples in a draw of a class (FedNH 64, the authors 32)",
    )

    def server_state(self, setup: Setup) -> State:
        layout, count = setup.layout, setup.classes * self.features_each
        weight = layout.columns("head.weight")
        width = (weight.stop - weight.start) // setup.classes
        return {
            **super().server_state(setup),
            "head": setup.initial(1)[layout.columns("head")],
            "features": setup.normal(count, width, key=("features",)),
        }

    def send(self, server: State, audience: Audience) -> Message:
        return {**super().send(server, audience), "head": server["head"]}

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add ``rebalanced`` [P], the received body under the retrained head."""
        body = inbox["model"][fleet.layout.columns("body")]
        rebalanced = torch.cat([body, inbox["head"]])
        return {**inbox, "rebalanced": rebalanced}

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(rows if trained else inbox["rebalanced"])

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        return {} if trained else {"global": ClientModel(inbox["rebalanced"])}

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        # Gradients are computed in evaluation mode, before training moves the
        # batch-norm buffers.
        gradients = fleet.head_gradients(
            inbox["rebalanced"], draws=(DRAWS, self.class_batch)
        )
        held = fleet.counts > 0
        floats = held.sum(dim=1) * gradients.shape[2]
        mean = Mean(gradients, held.long(), floats=floats)
        return {**super().update(fleet, inbox), "gradients": mean}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        super().aggregate(server, cohort, uplink)
        setup = cohort.setup
        by_class = server["features"].view(setup.classes, self.features_each, -1)
        features = by_class.clone()
        present = (cohort.counts > 0).any(dim=0).nonzero()[:, 0]
        wanted = uplink["gradients"][present]
        head = server["head"]

        def objective(free: State) -> Tensor:
            return compute_mismatch(
                free["features"],
                labels=present,
                classes=setup.classes,
                head=head,
                wanted=wanted,
            )

        start = {"features": features[present]}
        fitted = descend(start, objective, self.features_lr, self.match_steps)
        features[present] = fitted["features"]
        server["features"] = features.flatten(0, 1)
        server["head"] = self.train_head(cohort, server["features"])

    def train_head(self, cohort: Cohort, features: Tensor) -> Tensor:
        """Return the row [P_h] of a fresh head, trained on the synthetic ``features``
        [K·n_z, d].
        """
        setup = cohort.setup
        labels = torch.arange(setup.classes).repeat_interleave(self.features_each)
        bias = "head.bias" in setup.layout.names
        training = Training(
            epochs=self.head_epochs,
            batch_size=setup.training.batch_size,
            lr=self.head_lr,
        )
        return synthetic.fit(
            build=lambda: nn.Linear(features.shape[1], setup.classes, bias=bias),
            x=features,
            y=labels,
            classes=setup.classes,
            training=training,
            seed=setup.seed,
            round=cohort.round,
        )


def compute_mismatch(
    features: Tensor,
    labels: Tensor,
    classes: int,
    head: Tensor,
    wanted: Tensor,
) -> Tensor:
    """Return Σ_c Σ_rows 1 − cos between the head's gradients on synthetic features and
    the clients' mean gradients.

    Args:
        features: The synthetic features of C classes, [C, n_z, d].
        labels: The numbers of these classes, [C].
        classes: The number K of all classes.
        head: The row [P_h] of the head, weights before biases.
        wanted: The clients' mean gradients, [C, P_h].
    """
    size = classes * features.shape[2]
    weight, bias = head[:size].view(classes, -1), head[size:]
    errors = (features @ weight.T + (bias if len(bias) else 0)).softmax(dim=2)
    errors = errors - nn.functional.one_hot(labels, classes)[:, None]
    gradient = errors.transpose(1, 2) @ features / features.shape[1]
    of_weight = (
        1 - compute_cosines(gradient, wanted[:, :size].view_as(gradient))
    ).sum()
    if not len(bias):
        return of_weight
    of_bias = (1 - compute_cosines(errors.mean(dim=1), wanted[:, size:])).sum()
    return of_weight + of_bias


def compute_cosines(left: Tensor, right: Tensor) -> Tensor:
    """Return the cosines of vectors in the last dimension; 0 for a vector of zeros."""
    lengths: Tensor = left.norm(dim=-1) * right.norm(dim=-1)
    return (left * right).sum(dim=-1) / (lengths + GUARD)


plugin = CReFF
