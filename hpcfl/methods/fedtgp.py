"""FedTGP: FedProto with prototypes that the server trains to separate the classes.

Zhang et al., "FedTGP: Trainable global prototypes with adaptive-margin-enhanced
contrastive learning for data and model heterogeneity in federated learning", AAAI 2024.
Clients act as in FedProto, with a prototype of every class from the second exchange on.
The server has a small network T; the prototype of class k is T(k). Let μ_ik be the
uploads' class means. By plain steps on mini-batches of uploads the server minimises the
cross-entropy of the logits −(‖μ_ik − T(j)‖₂ + margin·[j = k])_j and k. An upload
must therefore be nearer to the prototype of its class than to any other prototype, by
the margin. The gap of a class is the distance of its mean upload from the nearest mean
upload of another class. The margin is the largest gap, at most ``margin_cap``.

Distances are computed from differences, with ε under the root. The authors' code
expands the square, and its root has no gradient at 0. A cohort with a single class has
no gap, and the margin is 0. As in FedProto the distance in the clients' loss is a mean
over coordinates too. The result is ``post``, as in FedProto. The next round's ``pre``
scores the trained models with the new prototypes (methods-3.md §14).
"""

import torch
import torch.nn.functional as functional
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn

from hpcfl.clients.synthetic import descend_by_batches, draw_batches
from hpcfl.methods.base import (
    UNWEIGHTED,
    Cohort,
    Fleet,
    Message,
    Sent,
    Setup,
    State,
    search,
)
from hpcfl.methods.fedproto import FedProto

NETWORK = "network."  # prefix of the names of T's tensors in the server's state
EPSILON = 1e-12  # added under a root, because its gradient at 0 is not a number


class FedTGP(FedProto):
    """State and traffic of FedTGP.

    Server: FedProto's ``prototypes`` T(k) [K, d] and ``present``, bool [K]; T's
    tensors, ``network.NAME``. Client: ``model`` [P]. Down d for each class, from round
    2 on, up d for each class held; down and up also one bit for each class. ``weights``
    has no effect, because each upload is one sample.
    """

    reference = "Zhang et al., AAAI 2024"
    readers = UNWEIGHTED
    short = {"server_epochs": 3}
    lam: float = Field(
        10.0,
        ge=0,
        description="strength λ of the distance to prototypes in the loss; 0 trains as Local",
        json_schema_extra=search([1.0, 10.0], "the authors' default and script"),
    )
    server_lr: float = Field(
        0.01, gt=0, description="learning rate of the prototypes on the server"
    )
    server_epochs: NonNegativeInt = Field(
        100,
        description="epochs of the prototypes on the server per round",
        json_schema_extra=search([100, 1000], "the authors' script and default"),
    )
    margin_cap: float = Field(100.0, ge=0, description="upper limit of the margin")

    def server_state(self, setup: Setup) -> State:
        state = super().server_state(setup)
        classes, width = state["prototypes"].shape

        def network() -> nn.Module:
            return nn.ModuleDict(
                {
                    "classes": nn.Embedding(classes, width),
                    "hidden": nn.Linear(width, width),
                    "out": nn.Linear(width, width),
                }
            )

        tensors = setup.parameters(network, key=("prototypes",))
        state["prototypes"] = generate_prototypes(tensors)
        return state | {NETWORK + name: tensor for name, tensor in tensors.items()}

    def upload(self, fleet: Fleet, means: Tensor) -> Message:
        held = fleet.counts > 0
        floats = held.sum(dim=1) * means.shape[2] + means.shape[1] / 32
        return {"prototypes": Sent(means.flatten(1), floats)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        held = cohort.counts > 0
        uploads = uplink["prototypes"].view(*held.shape, -1)[held]
        labels = held.nonzero()[:, 1]
        margin = self.compute_margin(uploads, labels)

        def objective(free: State, batch: Tensor) -> Tensor:
            return compute_contrast(
                uploads[batch], labels[batch], generate_prototypes(free), margin
            )

        start = {
            name.removeprefix(NETWORK): tensor
            for name, tensor in server.items()
            if name.startswith(NETWORK)
        }
        key = "prototypes", cohort.round
        order = draw_batches(cohort.setup, len(labels), self.server_epochs, *key)
        fitted = descend_by_batches(start, objective, self.server_lr, order)
        server |= {NETWORK + name: tensor for name, tensor in fitted.items()}
        server["prototypes"] = generate_prototypes(fitted)
        server["present"] = torch.ones_like(server["present"])

    def compute_margin(self, uploads: Tensor, labels: Tensor) -> float:
        """Return the largest gap between classes, at most ``margin_cap``; 0 for a
        single class.

        Args:
            uploads: The uploaded class means [count, d].
            labels: Their classes [count].
        """
        present = labels.unique()
        if len(present) < 2:
            return 0.0
        means = torch.stack([uploads[labels == label].mean(dim=0) for label in present])
        distances = (means[:, None] - means).norm(dim=2).fill_diagonal_(torch.inf)
        gaps = distances.amin(dim=1)
        return min(float(gaps.max()), self.margin_cap)


def generate_prototypes(network: State) -> Tensor:
    """Return the prototypes T(k) [K, d] of all classes, from the tensors of T by name."""
    hidden = functional.linear(
        network["classes.weight"], network["hidden.weight"], network["hidden.bias"]
    )
    return functional.linear(hidden.relu(), network["out.weight"], network["out.bias"])


def compute_contrast(
    uploads: Tensor, labels: Tensor, prototypes: Tensor, margin: float
) -> Tensor:
    """Return the cross-entropy that the server minimises over T.

    Args:
        uploads: Uploaded class means [batch, d].
        labels: Their classes [batch].
        prototypes: The prototypes T(k) [K, d].
        margin: The margin.
    """
    squares = (uploads[:, None] - prototypes).square().sum(dim=2)
    distances = (squares + EPSILON).sqrt()
    own = functional.one_hot(labels, len(prototypes))
    return functional.cross_entropy(-(distances + margin * own), labels)


plugin = FedTGP
