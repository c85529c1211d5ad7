"""FedNH: the head consists of fixed unit-norm class prototypes, which the server moves
slowly towards class features.

Dai et al., "Tackling data heterogeneity in federated learning with class prototypes",
AAAI 2023. Let f be the normalised features; logits are s·V f. The rows of V, spread out
on the unit sphere, are the prototypes. Clients train the body (and s) under a frozen V.
They send the body and the mean feature μ_ic of each class that they hold. The server
averages the bodies and moves V_c ← normalise(ρV_c + (1 − ρ)·μ̄_c). μ̄_c is the
normalised mean of class c over clients, weighted by their samples of c.

The method follows the reference code where the text differs (methods-1.md §8, item 9).
The rows of V start orthonormal, which does not solve the text's eq. 1 (``prototypes =
"simplex"`` does). s is learnable, starts at 1 and is averaged. The μ_ic are normalised
before they are averaged, and weighted by class.
"""

from typing import Literal

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods.base import (
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    Method,
    Setup,
    State,
    head_of,
    parts,
    search,
)
from hpcfl.models.heads import CosineHead, Rows


class FedNH(Method):
    """State and traffic of FedNH.

    Server: ``model`` [P] with V as columns ``head.weight``. Client: ``model`` [P], its
    last one. Down P; up the body, s, and for each class held d + 1 floats, the mean and
    the count.
    """

    family = "prototypes as head"
    primary = "post"
    client_models = ("model",)
    reference = "Dai et al., AAAI 2023"
    short = {"rho": 0.5}
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients in the mean of their bodies"
    )
    rho: float = Field(
        0.9,
        ge=0,
        le=1,
        description="weight ρ of the old prototype in the new one",
        json_schema_extra=search([0.1, 0.3, 0.5, 0.7, 0.9], "FedNH"),
    )
    scale: float = Field(
        1.0,
        gt=0,
        description="initial scale s of the logits (1 CNN, 20 ResNet; the text: 30, fixed)",
    )
    prototypes: Rows = Field(
        "orthonormal",
        description="start of V: orthonormal (the authors' code), or a simplex, the text's eq. 1",
    )
    learn_scale: bool = Field(
        True, description="train and average s, as the reference code does"
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        head = head_of(model, self.name, trained=True)
        model.head = CosineHead(
            head.in_features, head.out_features, self.scale, self.prototypes
        )
        return model

    def server_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def send(self, server: State, audience: Audience) -> Message:
        return {"model": server["model"]}

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        model: Tensor = inbox["model"]
        return model

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        return {} if trained else {"global": ClientModel(rows)}

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        trained = fleet.train(
            start, params=("body", "head.scale") if self.learn_scale else ("body",)
        )
        self.score(fleet, inbox, trained, trained=True)
        fleet.state["model"] = trained
        means = functional.normalize(
            fleet.class_means(trained, compute_unit_features), dim=2
        )
        held = (fleet.counts > 0).sum(dim=1)
        shares = self.shares(fleet)
        return {
            "body": Mean(trained[:, fleet.layout.columns("body")], shares),
            "scale": Mean(trained[:, fleet.layout.columns("head.scale")], shares),
            "prototypes": Mean(
                means.double(), fleet.counts, floats=held * (means.shape[2] + 1)
            ),
        }

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        layout, model = cohort.layout, server["model"].clone()
        model[layout.columns("body")] = uplink["body"]
        model[layout.columns("head.scale")] = uplink["scale"]
        old = model[layout.columns("head.weight")].view(cohort.counts.shape[1], -1)
        model[layout.columns("head.weight")] = self.move_prototypes(
            old, cohort.counts, uplink["prototypes"]
        ).flatten()
        server["model"] = model

    def move_prototypes(self, old: Tensor, counts: Tensor, means: Tensor) -> Tensor:
        """Return the moved prototypes [K, d], normalise(ρV + (1 − ρ)·normalise(Σ_i N_ic
        μ_ic)).

        Args:
            old: The prototypes V [K, d]; rows of absent classes stay unchanged.
            counts: The numbers N_ic of training samples of each class, [n, K].
            means: The means Σ_i N_ic μ_ic / Σ_i N_ic, float64 [K, d], with the μ_ic at
                unit length.
        """
        blend = torch.lerp(functional.normalize(means, dim=1), old.double(), self.rho)
        held = (counts.sum(dim=0) > 0)[:, None] & (self.rho < 1)
        return torch.where(held, functional.normalize(blend, dim=1).float(), old)


def compute_unit_features(model: nn.Module, x: Tensor, lane: object) -> Tensor:
    """Return the features at unit length, f/‖f‖ [batch, d]."""
    return functional.normalize(parts(model).features(x), eps=1e-12)


plugin = FedNH
