"""Adaptive local aggregation (ALA): learned weights blend the received model and a
client's own.

ALA is no overlay: a method goes on to read the received model, which an overlay would
replace, as an anchor or in ``global``, and ALA stores the whole trained model, of which
a message may have a part.

Zhang et al., "FedALA: Adaptive local aggregation for personalized federated learning",
AAAI 2023, eqs 4–7. A client with a model v of its own that receives a model g copies
the lower layers of g and starts the upper ones at v + Ω⊙(g − v). It learns the weights
Ω, one in [0, 1] for each parameter, on its own samples before local training. Only the
model that training starts from is replaced, so that other methods than FedALA can have
it too (``ala = true``, ``ServerModel``).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hpcfl.methods.base import CROSS_ENTROPY, Fleet, Group, Setup, State, StepContext

Activation = Literal["round", "own"]  # whose second round learns Ω until it converges
Adaptation = Literal["always", "initial"]  # the rounds that learn Ω
WINDOW = 10  # so many last losses must be alike for a first activation to end


@dataclass(frozen=True)
class AdaptiveLocalAggregation:
    """ALA with the keys of ``FedALA``.

    Client: ``model`` [P], its own; ``ala.weights``, Ω of the upper layers' columns;
    ``ala.rounds`` [1], in how many rounds it has taken part.

    activation: "round", Algorithm 1, begins with round 2 of the federation, also for
    clients that were not in round 1, whose own model is still the initial one. "own"
    begins with each client's own second round.
    adaptation: "initial" leaves Ω as that first activation has made it.
    """

    eta: float = 1.0
    share: float = 0.8
    layers: Group = 1
    threshold: float = 0.01
    most_epochs: int = 100
    activation: Activation = "round"
    adaptation: Adaptation = "always"

    def client_state(self, setup: Setup) -> State:
        upper = setup.layout.columns(self.layers)
        return {
            "model": setup.initial(),
            "ala.weights": torch.ones(upper.stop - upper.start),
            "ala.rounds": torch.zeros(1, dtype=torch.int64),
        }

    def adapt(self, fleet: Fleet, received: Tensor) -> Tensor:
        """Return the models ``[n, P]`` before training: ``received``, with upper layers
        v + Ω⊙(g − v).

        Over mini-batches of a random share of the samples, Ω ← clip(Ω − η·∇⊙(g − v), 0,
        1) with the loss's gradient ∇ at the blended model. In the second round the
        epochs end when the standard deviation of the last ten losses is below the
        threshold, at most ``most_epochs``; later rounds take one epoch. In the first
        round clients have no own model yet and start from g. A counter tells the first
        round, where the reference code compares tensors. Batch norm is in training
        mode, and its statistics are restored afterwards. Stragglers do all epochs,
        because convergence ends them.
        """
        upper = fleet.layout.columns(self.layers)
        rows = fleet.rows(received)
        own = fleet.state["model"][:, upper]
        received = rows[:, upper]
        omega = fleet.state["ala.weights"]
        taken = fleet.state["ala.rounds"]
        rounds = taken
        if self.activation != "own":
            rounds = torch.full_like(taken, fleet.round - 1)
        start = rows.clone()
        start[:, upper] = torch.lerp(own, received, omega)

        def step(context: StepContext) -> None:
            lane = context.variables
            descent = self.eta * context.gradient() * (lane["received"] - lane["own"])
            lane["omega"] = (lane["omega"] - descent).clamp(0, 1)
            context.set_rows(torch.lerp(lane["own"], lane["received"], lane["omega"]))

        def done(losses: Tensor, lane: State) -> Tensor:
            later = lane["rounds"][:, 0] > 1
            if losses.shape[1] <= WINDOW:
                return later
            spread = losses[:, -WINDOW:].std(dim=1, correction=0)
            return later | (spread < self.threshold)

        learns = rounds[:, 0] > 0
        if self.adaptation == "initial":
            learns = rounds[:, 0] == 1
        with fleet.trial():
            blended, after = fleet.train_by(
                step,
                start,
                loss=CROSS_ENTROPY,
                params=(self.layers,),
                phase="ala",
                share=self.share,
                frozen="training",
                only=learns,
                until=done,
                epochs=self.most_epochs,
                variables={
                    "own": own,
                    "received": received,
                    "omega": omega,
                    "rounds": rounds,
                },
            )
        fleet.state["ala.weights"] = after["omega"]
        fleet.state["ala.rounds"] = taken + 1
        return blended
