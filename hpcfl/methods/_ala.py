"""Adaptive local aggregation (ALA): blend the received model and one's own, element by element, with
learned weights.

Zhang et al., "FedALA: Adaptive local aggregation for personalized federated learning", AAAI 2023, eqs 4–7.
The module is FedALA's and, by ``ala = true``, an option of other methods; it replaces nothing but the
local initialisation.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.fleet import Fleet, Turn
from hpcfl.fleet.kernels import Batch
from hpcfl.methods.base import Method, Setup, State
from hpcfl.rows.layout import Group

WINDOW = 10  # losses whose standard deviation decides that the first activation has converged


@dataclass(frozen=True)
class AdaptiveLocalAggregation:
    """Client state: ``model`` [P] own model, ``ala.weights`` Ω of the upper layers, ``ala.rounds``
    times trained."""

    eta: float = 1.0
    share: float = 0.8
    layers: Group = 1
    threshold: float = 0.01
    most_epochs: int = 100

    def client_state(self, setup: Setup) -> State:
        upper = setup.layout.columns(self.layers)
        return {"model": setup.initial(), "ala.weights": torch.ones(upper.stop - upper.start),
                "ala.rounds": torch.zeros(1, dtype=torch.int64)}

    def adapt(self, fleet: Fleet, received: Tensor) -> Tensor:
        """The initialised models ``[n, P]``: lower layers copied from ``received``, upper ones v + Ω⊙(g − v).

        Ω ← clip(Ω − η·∇⊙(g − v), 0, 1) over mini-batches of a random share of the data. A client's first
        activation runs until the standard deviation of its last ten epochs' losses falls below the threshold,
        at most ``most_epochs``; later ones run one epoch. In its first round a client has no model of its own
        and starts from g (the reference code finds that by comparing tensors, here it is counted).
        """
        upper = fleet.layout.columns(self.layers)
        own, received = fleet.state["model"][:, upper], fleet.rows(received)
        new, omega, rounds = received[:, upper], fleet.state["ala.weights"], fleet.state["ala.rounds"]
        start = received.clone()
        start[:, upper] = torch.lerp(own, new, omega)

        def step(turn: Turn) -> None:
            lane = turn.variables
            descent = self.eta * turn.gradient() * (lane["new"] - lane["own"])
            lane["omega"] = (lane["omega"] - descent).clamp(0, 1)
            turn.write(torch.lerp(lane["own"], lane["new"], lane["omega"]))

        def done(losses: Tensor, lane: State) -> Tensor:
            later = lane["rounds"][:, 0] > 1
            return later | (losses[:, -WINDOW:].std(dim=1, correction=0) < self.threshold
                            if losses.shape[1] > WINDOW else later)

        blended, after = fleet.train_by(
            step, start, loss=cross_entropy, params=(self.layers,), phase="ala", share=self.share,
            only=rounds[:, 0] > 0, until=done, epochs=self.most_epochs,
            variables={"own": own, "new": new, "omega": omega, "rounds": rounds})
        fleet.state["ala.weights"], fleet.state["ala.rounds"] = after["omega"], rounds + 1
        return blended


class Blending(Method):
    """A method that has the option ``ala``; it says itself what is blended with a client's own model."""

    ala: bool = Field(
        False,
        description="blend own model and what comes down by FedALA's module (s = 0.8, p = 1) before training")

    def adaptive_aggregation(self) -> AdaptiveLocalAggregation:
        """The module with this method's settings."""
        return AdaptiveLocalAggregation()

    def client_state(self, setup: Setup) -> State:
        added = self.adaptive_aggregation().client_state(setup) if self.ala else {}
        return {**super().client_state(setup), **added}


def cross_entropy(model: nn.Module, batch: Batch, lane: Any) -> Tensor:
    """The loss inside ALA, whatever the method's own objective (methods-1.md §6)."""
    return functional.cross_entropy(model(batch.x), batch.y)
