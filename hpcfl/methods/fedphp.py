"""FedPHP: a client keeps a moving average of its trained models, which supervises local
training.

Li et al., "FedPHP: Federated personalization with inherited private models", ECML-PKDD
2021. A client trains θ_i from the received w on (1 − λ)·CE(θ_i) + λ·MMD²(φ(θ_i; x),
φ(q_i; x)), with φ the features. Its inherited model q_i is constant during training.
Then q_i ← m q_i + (1 − m) θ_i, m = min(μ c_i/⌊ρT⌋, μ), where c_i counts the client's
earlier rounds. With T rounds and a fraction ρ of the clients in each, a client takes
part ρT times on average.

Batch-norm statistics of q_i are averaged like its parameters. PFLlib differs
(methods-2.md §6, item 9): ``variant = "pfllib"`` uses PFLlib's m = μ·(round − 1)/T and
four fixed widths of the kernel. PFLlib also scores θ_i instead of q_i, which is the
column ``trained`` here.
"""

from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods.base import (
    Batch,
    ClientModel,
    Fleet,
    Inbox,
    Setup,
    State,
    evaluate_at,
    parts,
    search,
)
from hpcfl.methods.fedavg import FedAvg

# Widths of the five kernels, relative to the mean squared distance.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
WIDTHS = (20.0, 30.0, 40.0, 100.0)  # PFLlib's 2a for a = 10, 15, 20, 50


def compute_discrepancy(
    own: Tensor, others: Tensor, widths: tuple[float, ...] | None = None
) -> Tensor:
    """Return MMD² of two models' features over all pairs of samples.

    The kernel is a sum of Gaussians exp(−‖·‖²/width).

    Args:
        own: The features of one model, [b, d].
        others: The features of the other model, [b, d].
        widths: The widths of the Gaussians. The default widths are multiples of the
            mean squared distance between different ones of all 2b features; this mean
            is a constant in the gradient.
    """
    pooled = torch.cat([own, others])
    squares = pooled.square().sum(dim=1)
    apart = (squares[:, None] + squares - 2 * pooled @ pooled.T).clamp(min=0)
    count = len(pooled)
    mean = apart.detach().sum() / (count * (count - 1)) + 1e-8
    kernels = (
        torch.exp(-apart / width)
        for width in widths or [mean * factor for factor in FACTORS]
    )
    kernel = cast(Tensor, sum(kernels))
    half = len(own)
    return (
        kernel[:half, :half].mean()
        + kernel[half:, half:].mean()
        - 2 * kernel[:half, half:].mean()
    )


class FedPHP(FedAvg):
    """State and traffic of FedPHP.

    Server: ``model`` [P]. Client: ``inherited`` q_i [P]; ``count`` c_i [1]. Down P, up
    P.
    """

    primary = "post"
    client_models = ("inherited",)
    family = "personal beside global"
    reference = "Li et al., ECML-PKDD 2021"
    keeps = ("ala", "aggregation")
    needs_rounds: ClassVar[bool] = True
    models = ("model", "inherited")
    inherited = ("inherited",)
    mu: float = Field(
        0.9,
        ge=0,
        le=1,
        description="final weight μ of the old inherited model in its average",
        json_schema_extra=search(
            [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], "FedALA"
        ),
    )
    lam: float = Field(
        0.01,
        ge=0,
        le=1,
        description="weight λ of the inherited model's supervision; 0 trains like FedAvg",
        json_schema_extra=search([0.1, 0.05, 0.01, 0.005, 0.001], "FedALA"),
    )
    variant: Literal["original", "pfllib"] = Field(
        "original",
        description="schedule of m and widths of the kernel: the paper's or PFLlib's",
    )

    def client_state(self, setup: Setup) -> State:
        count = torch.zeros(1, dtype=torch.int64)
        return {**super().client_state(setup), "count": count}

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        if not self.lam:
            return super().loss(model, batch, lane)
        features = parts(model).features(batch.x)
        inherited = evaluate_at(
            model,
            lane.inherited,
            lambda teacher: parts(teacher).features(batch.x),
            lane.statistics,
        )
        widths = WIDTHS if self.variant == "pfllib" else None
        fit = functional.cross_entropy(parts(model).head(features), batch.y)
        supervision = self.lam * compute_discrepancy(features, inherited, widths)
        # With this term the recorded data loss is the cross-entropy, as in other
        # methods.
        lane.regulariser(supervision - self.lam * fit)
        return (1 - self.lam) * fit + supervision

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        return {
            **super().loss_variables(fleet, inbox),
            "inherited": fleet.state["inherited"],
            "statistics": fleet.buffers("inherited"),
        }

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        kept = self.compute_momentum(fleet)[:, None]
        fleet.state["inherited"] = torch.lerp(trained, fleet.state["inherited"], kept)
        fleet.keep_buffers(
            "inherited", torch.lerp(fleet.buffers(), fleet.buffers("inherited"), kept)
        )
        fleet.state["count"] = fleet.state["count"] + 1

    def compute_momentum(self, fleet: Fleet) -> Tensor:
        """Return m [n], the weight of q_i in its average of this round."""
        setup = fleet.setup
        if self.variant == "pfllib":
            return torch.full_like(
                fleet.state["inherited"][:, 0],
                self.mu * (fleet.round - 1) / setup.rounds,
            )
        expected = max(int(setup.participation * setup.rounds + 1e-9), 1)
        return (self.mu * fleet.state["count"][:, 0] / expected).clamp(0, self.mu)

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(fleet.state["inherited"], model="inherited")

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        return (
            {"trained": ClientModel(rows)}
            if trained
            else super().other_models(fleet, inbox, rows, trained)
        )


plugin = FedPHP
