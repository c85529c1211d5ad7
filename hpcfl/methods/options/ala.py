"""Adaptive local aggregation (ALA): learned weights blend the received model and a
client's personal model.

Zhang et al., "FedALA: Adaptive local aggregation for personalized federated learning",
AAAI 2023, eqs 4–7. A client has a personal model v and receives a model g. It copies
the lower layers of g and starts the upper layers at v + Ω⊙(g − v). Before local
training it learns the weights Ω, one in [0, 1] for each parameter, on its samples. ALA
only replaces the model that training starts from, so other methods can use it too
(``ala = true``, ``ServerModel``).

ALA is not an overlay, for two reasons. An overlay would replace the received model,
which methods also read as an anchor or score as ``global``. ALA also stores the whole
trained model, of which a message may contain only a part.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hpcfl.methods.base import CROSS_ENTROPY, Fleet, Group, Setup, State, StepContext

# The round in which Ω is first learned, until convergence: round 2 of the run, or the
# client's second round.
Activation = Literal["round", "own"]
Adaptation = Literal["always", "initial"]  # rounds that learn Ω
WINDOW = 10  # number of last losses that must be similar to end a first activation


@dataclass(frozen=True)
class AdaptiveLocalAggregation:
    """ALA with the keys of ``FedALA``.

    Client: ``model`` [P], its personal model; ``ala.weights``, Ω of the upper layers'
    columns; ``ala.rounds`` [1], the number of rounds in which it has trained.

    Attributes:
        eta: Learning rate η of Ω.
        share: Share of the client's samples that learn Ω.
        layers: Upper layers that are blended; the others are copied.
        threshold: Standard deviation of the last losses below which a first activation
            ends.
        most_epochs: Maximal number of epochs of a first activation.
        activation: "round" (Algorithm 1): the first activation is in round 2 of the
            run, also for clients that were not in round 1, whose personal model is
            still the initial one. "own": it is in each client's second round.
        adaptation: "always": every later round learns Ω. "initial": Ω stays constant
            after the first activation.
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

        Each step on a mini-batch of a random share of the samples computes Ω ← clip(Ω −
        η·∇⊙(g − v), 0, 1), with the gradient ∇ of the loss at the blended model. The
        second round trains until the standard deviation of the last ten losses is below
        the threshold, for at most ``most_epochs`` epochs. Later rounds train for one
        epoch. In the first round clients have no personal model yet and start from g; a
        counter identifies this round, while the reference code compares tensors. Batch
        norm is in training mode, and its statistics are restored afterwards. Stragglers
        train for all epochs, because convergence ends this training.

        Args:
            fleet: The clients to train.
            received: The received models g, [P] or [n, P].
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
            variables = context.variables
            gap = variables["received"] - variables["own"]
            descent = self.eta * context.gradient() * gap
            variables["omega"] = (variables["omega"] - descent).clamp(0, 1)
            context.set_rows(
                torch.lerp(variables["own"], variables["received"], variables["omega"])
            )

        def done(losses: Tensor, variables: State) -> Tensor:
            later = variables["rounds"][:, 0] > 1
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
