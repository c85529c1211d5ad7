"""FedCP: a gate splits the features of each sample between a shared, frozen head and a
personal one.

Zhang et al., "FedCP: Separating feature information for personalized federated learning
via conditional policy", KDD 2023. Let φ be the features [d], g the received head, r_i
the personal one and u_i the sum of the rows of r_i's weight, scaled to unit length. A
gate maps φ⊙u_i to two vectors p and q with p + q = 1 in each coordinate. The logits are
r_i(φ⊙p) + g(φ⊙q). A client minimises CE + λ·MMD²(φ, φ_w) over body, r_i and gate. φ_w
are the received body's features, and the kernel is fedphp's with fixed widths. g and
u_i are constant. Body and gate are averaged, and g becomes the mean of ½(r_i + g). r_i
is private and starts as g.

Deviations (methods-3.md §8, item 9): the authors' code adds Gumbel noise before the
softmax of the gate, also in tests, so that its accuracy is random. Here there is no
noise, or with ``noise`` only in training. Its first u_i is random; here it comes from
g. φ_w is computed in evaluation mode, with the batch-norm statistics of the model in
training. The biases of both heads count, so that r_i = g gives Wφ + 2b.
"""

import copy
from typing import Any

import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.base import (
    Batch,
    ClientModel,
    Fleet,
    Inbox,
    Layout,
    Message,
    State,
    StepContext,
    evaluate_at,
    head_of,
    parts,
    search,
)
from hpcfl.methods.fedphp import WIDTHS, compute_discrepancy

EDGE = 1e-7  # minimal distance of uniform numbers from 0 and 1, for their logarithms
TRAINED = ("body", "gate", "personal")


class FedCP(PrivatePart):
    """State and traffic of FedCP.

    Server: ``model``, a client's whole row: body, g, gate, and the initial r. Client:
    ``head`` r_i [P_h]. Down and up P + 2d² + 6d. ``pre`` and ``post`` score the gated
    sum, ``global`` g(φ).
    """

    reference = "Zhang et al., KDD 2023"
    trains = {}  # head and gate are shared even without a trained body
    short = {"noise": True}
    lam: float = Field(
        5.0,
        ge=0,
        description="strength λ of the distance of features to the received body's "
        "(PFLlib's default 1)",
        json_schema_extra=search(
            [0.5, 1.0, 5.0, 50.0], "PFLlib's and the authors', a tenth and ten times"
        ),
    )
    noise: bool = Field(
        False,
        description="add Gumbel noise in the gate in training, as the authors' code",
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        head = head_of(model, self.name, trained=True)
        width = head.in_features
        model.gate = nn.Sequential(
            nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU()
        )
        model.personal = copy.deepcopy(head)
        return model

    def find_private_columns(self, layout: Layout) -> slice:
        return layout.columns("personal")

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        features = parts(model).features(batch.x)
        noise = lane.noise[: len(batch.y)] if self.noise else None
        logits = predict_separated(model, features, lane.context, noise)
        fit = functional.cross_entropy(logits, batch.y)
        if not self.lam:
            return fit
        received = evaluate_at(
            model, lane.received, lambda other: parts(other).features(batch.x)
        )
        apart = compute_discrepancy(features, received.detach(), WIDTHS)
        pull: Tensor = lane.regulariser(self.lam * apart)
        return fit + pull

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        received = self.received(fleet, inbox)
        return {
            "received": received,
            "context": compute_contexts(fleet.layout, received),
        }

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        variables = self.loss_variables(fleet, inbox)
        if not self.noise:
            return fleet.train(rows, params=TRAINED, variables=variables)
        size = fleet.setup.training.batch_size
        width = 2 * variables["context"].shape[1]

        def step(context: StepContext) -> None:
            context.variables["noise"] = context.uniform("gumbel", size, width)
            context.optimizer_step(context.gradient())

        variables["noise"] = rows.new_zeros(len(rows), size, width)
        trained, _ = fleet.train_by(step, rows, params=TRAINED, variables=variables)
        return trained

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        """Return the trained body and gate, with the mean of both heads in place of the
        shared one.
        """
        head = fleet.layout.columns("head")
        personal = self.cut_private_part(fleet.layout, trained)
        sent = trained.clone()
        sent[:, head] = (trained[:, head] + personal) / 2
        return super().upload(fleet, inbox, sent)

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(
            rows, predict_in_context, {"context": compute_contexts(fleet.layout, rows)}
        )


def compute_contexts(layout: Layout, rows: Tensor) -> Tensor:
    """Return u [n, d] of clients with the models ``rows`` [n, P]."""
    weights = layout.split(rows)["personal.weight"]
    return functional.normalize(weights.sum(dim=1), dim=1)


def predict_in_context(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the logits of a client's model with its context, [batch, K]."""
    return predict_separated(model, parts(model).features(x), lane.context)


def predict_separated(
    model: nn.Module, features: Tensor, context: Tensor, noise: Tensor | None = None
) -> Tensor:
    """Return the logits r(φ⊙p) + g(φ⊙q) [batch, K].

    Args:
        model: The model of one client, with ``gate`` and ``personal``.
        features: φ [batch, d].
        context: u [d].
        noise: Uniform in [0, 1), [batch, 2d], the source of the gate's Gumbel noise.
    """
    scores = model.get_submodule("gate")(features * context)
    if noise is not None:
        scores = scores - (-noise.clamp(EDGE, 1 - EDGE).log()).log()
    # The last dimension gives bits that do not depend on other clients.
    pairs = scores.unflatten(1, (2, -1)).transpose(1, 2)
    own, common = pairs.softmax(dim=2).unbind(dim=2)
    personal = model.get_submodule("personal")(features * own)
    logits: Tensor = personal + parts(model).head(features * common)
    return logits


plugin = FedCP
