"""FedNH: a head of fixed, unit-norm, spread-out class prototypes that the server moves slowly towards
class features.

Dai et al., "Tackling data heterogeneity in federated learning with class prototypes", AAAI 2023. Features
are normalised, logits are s·V f; clients train the body (and s), V is frozen. The server averages bodies
and moves each prototype towards the normalised mean of its class's features. As in the reference code rather
than the text (methods-1.md §8, item 9): s is learnable, starts at 1 and is averaged; per-class counts weight
normalised class means.
"""

from typing import Literal

import torch
import torch.nn.functional as functional
from pydantic import Field as Key
from torch import Tensor, nn

from hpcfl.communication.message import Mean, Message
from hpcfl.fleet import Fleet
from hpcfl.methods.base import Audience, ClientModel, Cohort, Method, Setup, State, head_of
from hpcfl.models import parts
from hpcfl.models._heads import CosineHead


class FedNH(Method):
    """Server: ``model`` [P] whose head.weight columns are V. Client: ``model`` [P], its last one,
    for scoring.

    Down P; up body, scale, and for each class held its prototype and count.
    """

    family = "prototypes as a shared head"
    primary = "post"
    reference = "Dai et al., AAAI 2023"
    weights: Literal["samples", "uniform"] = Key("uniform", description="weights of the clients' bodies")
    rho: float = Key(0.9, ge=0, le=1, description="share ρ of the old prototype that is kept")
    scale: float = Key(1.0, gt=0,
                       description="initial scale s of the logits (1 CNN, 20 ResNet; the text: 30, fixed)")
    learn_scale: bool = Key(True, description="train and average s, as the reference code does")

    def adapt(self, model: nn.Module) -> nn.Module:
        head = head_of(model, self.name)
        model.head = CosineHead(head.in_features, head.out_features, self.scale)
        return model

    def server_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def client_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def send(self, server: State, audience: Audience) -> Message:
        return {"model": server["model"]}

    def start(self, fleet: Fleet, inbox: State) -> Tensor:
        return inbox["model"]

    def other_models(self, fleet: Fleet, inbox: State, rows: Tensor, trained: bool) -> dict[str, ClientModel]:
        return {} if trained else {"global": ClientModel(rows)}

    def update(self, fleet: Fleet, inbox: State) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        trained = fleet.train(start, params=("body", "head.scale") if self.learn_scale else ("body",))
        self.score(fleet, inbox, trained, trained=True)
        fleet.state["model"] = trained
        means = functional.normalize(fleet.class_means(trained, normalised_features), dim=2)
        held = (fleet.counts > 0).sum(dim=1)
        shares = self.shares(fleet)
        return {"body": Mean(trained[:, fleet.layout.columns("body")], shares),
                "scale": Mean(trained[:, fleet.layout.columns("head.scale")], shares),
                "prototypes": Mean(means.double(), fleet.counts, floats=held * (means.shape[2] + 1))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        layout, model = cohort.layout, server["model"].clone()
        model[layout.columns("body")] = uplink["body"]
        model[layout.columns("head.scale")] = uplink["scale"]
        old = model[layout.columns("head.weight")].view(cohort.counts.shape[1], -1)
        model[layout.columns("head.weight")] = self.moved(old, cohort.counts, uplink["prototypes"]).flatten()
        server["model"] = model

    def moved(self, old: Tensor, counts: Tensor, means: Tensor) -> Tensor:
        """V [K, d] ← normalise(ρV + (1−ρ)·normalise(Σ_i N_ic μ_ic)); rows of classes that nobody holds stay.

        counts [n, K]; means [K, d], Σ_i N_ic μ_ic / Σ_i N_ic of unit vectors μ_ic.
        """
        blend = torch.lerp(functional.normalize(means, dim=1), old.double(), self.rho)
        held = (counts.sum(dim=0) > 0)[:, None] & (self.rho < 1)
        return torch.where(held, functional.normalize(blend, dim=1).float(), old)


def normalised_features(model: nn.Module, x: Tensor, lane: object) -> Tensor:
    """f/‖f‖ [batch, d]."""
    return functional.normalize(parts(model).features(x), eps=1e-12)


plugin = FedNH
