"""GPFL: clients share class embeddings and a valve, which compute a global and a
personal view of the features.

Zhang et al., "GPFL: Simultaneously learning global and personalized feature information
for personalized federated learning", ICCV 2023. Let e_k be the class embeddings [d]. A
context z turns features φ into the view valve(φ, z) = ReLU((γ(z) + 1)⊙φ + β(z)), with
one layer each for γ and β. The global context is z = mean of all e_k. The personal one
is z_i = Σ_k π_ik e_k, with π_ik the client's share of the class. Both use the received
embeddings. A client minimises CE(head(valve(φ, z_i)), y) + CE(cos(valve(φ, z), e_·), y)
+ λ‖valve(φ, z) − e⁰_y‖ over all parameters. e⁰ are the received embeddings, and the
norm is that of the whole mini-batch, not squared. Embeddings and valve decay with the
strength μ. Body, valve and embeddings are averaged, the head is private.

As in the authors' code, cosines are logits without any scale, so that the second term
is at least log(1 + (K − 1)e^(−2)). Three points differ from the code (methods-3.md §9,
item 9). Contexts use the received embeddings, as in the text. The code uses the
client's embeddings of its last round, and zeros in its first, as here with ``lag``.
Decay is a term of the loss, which is equivalent for plain steps. 10⁻¹² is added under
the norm's root, because the root's slope at 0 is not a number.
"""

from typing import Any, cast

import torch
import torch.nn.functional as functional
from pydantic import Field, model_validator
from torch import Tensor, nn

from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.base import (
    Batch,
    ClientModel,
    Fleet,
    Inbox,
    Setup,
    State,
    head_of,
    parts,
    search,
)

FLOOR = 1e-12  # added under the root of the norm
EMBEDDINGS = "embeddings.weight"


class Valve(nn.Module):
    """Conditional valve for features and contexts of ``width`` d, with 2d² + 6d
    parameters.
    """

    def __init__(self, width: int):
        super().__init__()
        self.gamma = _make_layer(width)
        self.beta = _make_layer(width)

    def forward(self, features: Tensor, context: Tensor) -> Tensor:
        """Return the view [batch, d] of ``features`` [batch, d] in a ``context`` [d]."""
        scale = self.gamma(context) + 1
        return functional.relu(scale * features + self.beta(context))


def _make_layer(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))


class GPFL(PrivatePart):
    """State and traffic of GPFL.

    Server: ``model`` [P]: body, valve, embeddings, and the initial head. Client:
    ``head`` [P_h]; with ``lag`` also its ``embeddings`` [K·d]. Down and up P − P_h: the
    body, Kd and 2d² + 6d. ``pre`` and ``post`` score the personal view under the head,
    ``global`` the cosines of the global view. ``ala`` is refused, because it
    would blend the embeddings, which the model's prediction does not read.
    """

    reference = "Zhang et al., ICCV 2023"
    short = {"lag": True}
    lam: float = Field(
        0.01,
        ge=0,
        description="strength λ of the distance to the received embeddings",
        json_schema_extra=search([0.01, 1e-4], "the authors' scripts"),
    )
    mu: float = Field(
        0.1,
        ge=0,
        description="strength μ of the decay of valve and embeddings",
        json_schema_extra=search([0.0, 0.1, 1.0], "the authors' scripts"),
    )
    lag: bool = Field(
        False,
        description="compute contexts from the client's last embeddings, as the authors' code",
    )

    @model_validator(mode="after")
    def _refuse_ala(self) -> "GPFL":
        if self.ala:
            raise ValueError(
                "ala = true would blend the class embeddings, which gpfl's prediction does "
                "not read; leave ala out"
            )
        return self

    def adapt(self, model: nn.Module) -> nn.Module:
        head = head_of(model, self.name)
        del model.head  # the output layer must be registered last
        model.valve = Valve(head.in_features)
        model.embeddings = nn.Embedding(head.out_features, head.in_features)
        model.head = head
        return model

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        features = parts(model).features(batch.x)
        valve = model.get_submodule("valve")
        personal = valve(features, lane.personal_context)
        fit = functional.cross_entropy(parts(model).head(personal), batch.y)
        view = valve(features, lane.global_context)
        guide = functional.cross_entropy(compute_cosines(model, view), batch.y)
        away = (view - lane.embeddings[batch.y]).square().sum()
        distance = self.lam * (away + FLOOR).sqrt()
        term: Tensor = lane.regulariser(guide + distance + self.compute_decay(model))
        return fit + term

    def compute_decay(self, model: nn.Module) -> Tensor:
        """Return μ/2 times the squared norm of embeddings and valve."""
        length = get_embeddings(model).square().sum()
        for parameter in model.get_submodule("valve").parameters():
            length = length + parameter.square().sum()
        return self.mu / 2 * length

    def client_state(self, setup: Setup) -> State:
        state = super().client_state(setup)
        if not self.lag:
            return state
        columns = setup.layout.columns(EMBEDDINGS)
        return {**state, "embeddings": torch.zeros(columns.stop - columns.start)}

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        super().store_state(fleet, trained)
        if self.lag:
            columns = fleet.layout.columns(EMBEDDINGS)
            fleet.state["embeddings"] = trained[:, columns]

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add both contexts [n, d] and the received ``embeddings`` [n, K, d]."""
        rows = self.received(fleet, inbox)
        received = fleet.layout.split(rows)[EMBEDDINGS]
        seen = received
        if self.lag:
            seen = fleet.state["embeddings"].view_as(received)
        shares = fleet.counts / fleet.samples.clamp(min=1)[:, None]
        weighted = shares.to(seen)[..., None] * seen
        return {
            **inbox,
            "embeddings": received,
            "global_context": seen.mean(dim=1),
            "personal_context": weighted.sum(dim=1),
        }

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        names = ("embeddings", "global_context", "personal_context")
        return {name: inbox[name] for name in names}

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        context = {"personal_context": inbox["personal_context"]}
        return ClientModel(rows, predict_by_personal_view, context)

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        if trained:
            return {}
        context = {"global_context": inbox["global_context"]}
        shared = self.add_initial_head(fleet.layout, inbox)
        return {"global": ClientModel(shared, predict_by_global_view, context)}


def compute_cosines(model: nn.Module, view: Tensor) -> Tensor:
    """Return the cosines [batch, K] of a ``view`` [batch, d] and the class embeddings."""
    directions = functional.normalize(get_embeddings(model))
    return functional.normalize(view) @ directions.T


def get_embeddings(model: nn.Module) -> Tensor:
    """Return the class embeddings [K, d]."""
    return cast(Tensor, model.get_submodule("embeddings").weight)


def predict_by_personal_view(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the logits [batch, K] of the head on the personal view."""
    features = parts(model).features(x)
    view = model.get_submodule("valve")(features, lane.personal_context)
    logits: Tensor = parts(model).head(view)
    return logits


def predict_by_global_view(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the cosines [batch, K] of the global view, without a head."""
    features = parts(model).features(x)
    return compute_cosines(
        model, model.get_submodule("valve")(features, lane.global_context)
    )


plugin = GPFL
