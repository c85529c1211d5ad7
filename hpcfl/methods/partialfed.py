"""PartialFed-Adaptive: before training, a client draws for each layer the weight of the
shared model.

Sun et al., "PartialFed: Cross-domain personalized federated learning via partial
initialization", NeurIPS 2021 (methods-2.md §7; the paper's text was not available). A
client has a model θ_i and for each layer l two logits a_i^l. The warm-up rounds are
FedAvg's. Later a round begins with a draw u^l ~ GumbelSoftmax(a_i^l; T), with u^l_0 +
u^l_1 = 1. The client sets θ_i^l ← θ̂^l = u^l_0 w^l + u^l_1 θ_i^l with the received w.
Most mini-batches train the model, θ_i ← θ_i − η∇f(θ_i). The others, on other samples of
the same epoch, train the strategy, a_i ← a_i − η_a∇_a f(θ̂), each at a new draw of θ̂,
and leave θ_i unchanged. Steps are plain with every optimiser.

FedALA's description also permits a draw for every mini-batch, θ_i ← θ̂ − η∇f(θ̂), as
with ``draw = "batch"``. But then θ_i is replaced within two mini-batches. T decays each
round, down to 0.05, because the draw overflows as T → 0. The class that PFLlib removed
overwrites its learned strategy with each draw; here a_i accumulates.
"""

from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from hpcfl.methods.base import (
    PLAIN_STEPS,
    ClientModel,
    Fleet,
    Inbox,
    Layout,
    Setup,
    State,
    StepContext,
    search,
)
from hpcfl.methods.fedavg import FedAvg

COLDEST = 0.05  # smallest temperature
SHARED, OWN = 0, 1  # the indices of w and θ_i in a choice


class PartialFed(FedAvg):
    """State and traffic of PartialFed.

    Server: ``model`` [P]. Client: ``model`` θ_i [P]; ``strategy`` a_i [L, 2] of the L
    layers. Down P, up P. ``pre`` and ``post`` score, before and after training, the
    model with each layer from w or from θ_i, by the larger logit of a_i.
    """

    primary = "post"
    last_model = "model"
    inherited = ("model",)
    family = "personal beside global"
    reference = "Sun et al., NeurIPS 2021"
    keeps = ("ala", "aggregation")
    short = {"warmup": 1}
    unheeded = PLAIN_STEPS
    draw: Literal["round", "batch"] = Field(
        "round",
        description="draw once before local training, or again in every mini-batch",
    )
    warmup: NonNegativeInt = Field(
        20, description="number of first rounds with the complete shared model"
    )
    temperature: float = Field(
        5.0,
        gt=0,
        description="temperature T of the first round after the warm-up; values below 0.05 act as 0.05",
    )
    decay: float = Field(
        0.965, gt=0, le=1, description="factor of the temperature in each round"
    )
    strategy_share: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="share of batches that train the strategy",
        json_schema_extra=search(
            [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], "FedALA"
        ),
    )
    strategy_lr: float | None = Field(
        None, ge=0, description="learning rate η_a of the strategy; default: plain_lr"
    )

    def notes(self, setup: Setup) -> list[str]:
        if setup.rounds > self.warmup:
            return []
        return [
            f"partialfed: all {setup.rounds} rounds belong to the warm-up, so training is "
            f"FedAvg's; set method.warmup, now {self.warmup}, below the number of rounds"
        ]

    def client_state(self, setup: Setup) -> State:
        return {
            **super().client_state(setup),
            "strategy": torch.zeros(len(setup.layout.layers), 2),
        }

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        if not self.is_adaptive(fleet):
            return super().local_train(fleet, rows, inbox)
        rate = fleet.learning_rate
        layers = len(fleet.layout.layers)
        strategy_rate = rate if self.strategy_lr is None else self.strategy_lr
        decays = fleet.round - self.warmup - 1
        temperature = max(COLDEST, self.temperature * self.decay**decays)

        def step(context: StepContext) -> None:
            variables = context.variables
            own = context.rows()
            uniform = context.uniform("gumbel", layers, 2)
            choice = draw_choice(variables["strategy"], uniform, temperature)
            mixed = mix(fleet.layout, choice, variables["shared"], own)
            learns = self.trains_strategy(context.index, variables["offset"])[:, None]
            point = mixed if self.draw == "batch" else torch.where(learns, mixed, own)
            gradient = context.gradient(point)
            sources = torch.stack([variables["shared"], own], dim=1)
            slope = (
                compute_slopes(fleet.layout, choice, gradient, sources) / temperature
            )
            context.set_rows(torch.where(learns, own, point - rate * gradient))
            strategy = variables["strategy"]
            moved = strategy - strategy_rate * slope
            variables["strategy"] = torch.where(learns[..., None], moved, strategy)

        own = fleet.state["model"]
        shared = fleet.rows(rows)
        strategy = fleet.state["strategy"]
        if self.draw == "round":
            uniform = fleet.uniform("first gumbel", layers, 2)
            choice = draw_choice(strategy, uniform, temperature)
            own = mix(fleet.layout, choice, shared, own)
        trained, after = fleet.train_by(
            step,
            own,
            variables={
                **self.loss_variables(fleet, inbox),
                "shared": shared,
                "strategy": strategy,
                "offset": fleet.uniform("strategy batches"),
            },
        )
        fleet.state["strategy"] = after["strategy"]
        return trained

    def is_adaptive(self, fleet: Fleet) -> bool:
        """Return whether the warm-up is over."""
        return fleet.round > self.warmup

    def trains_strategy(self, taken: Tensor, offset: Tensor) -> Tensor:
        """Return whether the next mini-batch trains the strategy, bool [a].

        These mini-batches are spread evenly over the round.

        Args:
            taken: The numbers of mini-batches so far, [a].
            offset: A random number in [0, 1) for the first of them, [a].
        """
        counts = torch.stack([taken, taken + 1])
        before, after = (offset + counts * self.strategy_share).floor().unbind()
        return after > before

    def choose_layers(self, fleet: Fleet, shared: Tensor) -> Tensor:
        """Return models [n, P] with each layer from its more probable source, the
        ``shared`` model or θ_i; equal probabilities select θ_i.
        """
        strategy = fleet.state["strategy"]
        prefers_own = strategy[..., OWN] >= strategy[..., SHARED]
        keeps = repeat_by_layer(fleet.layout, prefers_own.float())
        return torch.where(keeps > 0, fleet.state["model"], shared)

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        if not self.is_adaptive(fleet):
            return ClientModel(rows)
        received = self.received(fleet, inbox)
        return ClientModel(self.choose_layers(fleet, received))


def draw_choice(strategy: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Draw choices u ~ GumbelSoftmax(a; T), [a, L, 2].

    Args:
        strategy: The logits a, [a, L, 2].
        uniform: Uniform random numbers of the same shape.
        temperature: The temperature T.
    """
    return ((strategy + compute_gumbel(uniform)) / temperature).softmax(dim=2)


def compute_gumbel(uniform: Tensor) -> Tensor:
    """Return Gumbel noise in the shape of the ``uniform`` numbers in [0, 1)."""
    # Conversion to float32 may have rounded numbers up to 1.
    inside = uniform.clamp(1e-20, 1 - 2**-24)
    return -(-inside.log()).log()


def mix(layout: Layout, choice: Tensor, shared: Tensor, own: Tensor) -> Tensor:
    """Return the mixed models θ̂ [a, P].

    Args:
        layout: The layout of a row.
        choice: The weights of both sources in each layer, [a, L, 2].
        shared: The shared models w, [a, P].
        own: The clients' models θ_i, [a, P].
    """
    shared_part = repeat_by_layer(layout, choice[..., SHARED]) * shared
    own_part = repeat_by_layer(layout, choice[..., OWN]) * own
    return shared_part + own_part


def compute_slopes(
    layout: Layout, choice: Tensor, gradient: Tensor, sources: Tensor
) -> Tensor:
    """Return the gradient with respect to the logits, T·∂f/∂a, [a, L, 2].

    Args:
        layout: The layout of a row.
        choice: The weights of both sources in each layer, [a, L, 2].
        gradient: The gradient ∂f/∂θ̂, [a, P].
        sources: The sources w and θ_i, [a, 2, P].
    """
    products = gradient[:, None] * sources
    direct = sum_within_layers(layout, products)
    mean = (choice * direct).sum(dim=2, keepdim=True)
    return choice * (direct - mean)


def repeat_by_layer(layout: Layout, values: Tensor) -> Tensor:
    """Repeat ``values`` of the layers [a, L] in all of each layer's columns, [a, P]."""
    parts = zip(values.split(1, dim=1), count_layer_parameters(layout), strict=True)
    return torch.cat([value.expand(-1, size) for value, size in parts], dim=1)


def sum_within_layers(layout: Layout, values: Tensor) -> Tensor:
    """Return the sums of ``values`` [a, k, P] over each layer's columns, [a, L, k]."""
    parts = values.split(count_layer_parameters(layout), dim=2)
    return torch.stack([part.sum(dim=2) for part in parts], dim=1)


def count_layer_parameters(layout: Layout) -> list[int]:
    """Return the number of parameters of each layer."""
    return [layer.stop - layer.start for layer in layout.layers]


plugin = PartialFed
