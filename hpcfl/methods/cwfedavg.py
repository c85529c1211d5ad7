"""cwFedAvg: FedAvg per class, and for each client the mix of the class models under its class distribution.

Lee & Choi, "Class-wise federated averaging" (arXiv 2406.07800 v1; ICCV 2025). With π̂_i the class distribution of client i and
p_l its data share, class model j is G_j = Σ_l q_lj w_l, q_lj ∝ p_l π̂_lj, and client i starts from Σ_j π̂_ij G_j: one mixing matrix
A = Π·Q, so that no class model is ever built (``class_models`` builds them to be looked at).

π̂ is the true distribution, or read off the norms of the output layer's rows, which the weight distribution regulariser (WDR)
λ‖π_i − π̂_i(w)‖₂ makes follow the true one. Choices where paper and code differ (methods-1.md §5, item 9): the code halves λ, so does
``wdr_half``; π counts training samples only; norms leave the bias out; a class that no participant holds is left out of the mix
(the code divides 0/0); partial participation follows the same formulas.
"""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as functional
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from hpcfl import mixing
from hpcfl.fleet import Fleet
from hpcfl.fleet.kernels import Batch
from hpcfl.message import Message
from hpcfl.methods.base import Cohort, Layers, Setup, State, head_of
from hpcfl.methods.fedavg import FedAvg

FLOOR = 1e-12  # under square roots, whose gradient at 0 is not a number


def norm_distribution(head: Tensor) -> Tensor:
    """π̂ [..., K] of output weights ``[..., K, d]`` without bias: row norms over their sum; 1/K if all are zero."""
    norms = (head.square().sum(dim=-1) + FLOOR).sqrt()
    return norms / norms.sum(dim=-1, keepdim=True)


def class_weights(distributions: Tensor, weights: Tensor) -> Tensor:
    """Q [K, n]: client l's share in class model j, p_l π̂_lj / Σ_m p_m π̂_mj; a row of zeros for a class nobody holds."""
    mass = weights[:, None] * distributions
    total = mass.sum(dim=0, keepdim=True)
    return torch.where(total > 0, mass / total.clamp(min=1e-300), 0).T


def mixing_matrix(distributions: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """A [m, n] = Π·Q for receivers' π̂ ``[m, K]``, over the classes that somebody holds; without any, the average's row."""
    held = torch.where(shares.sum(dim=1) > 0, distributions, 0)
    total = held.sum(dim=1, keepdim=True)
    return torch.where(total > 0, held / total.clamp(min=1e-300) @ shares, weights)


class CwFedAvg(FedAvg):
    """Server: ``model`` [P] FedAvg's mean, ``uploads`` [n, P_cw] class-wise columns, ``weights`` [n] p, ``shares`` Q [K, n],
    ``distributions`` π̂ [M, K]. Client: nothing. Down P, up P (+ K with true distributions).
    """

    reference = "Lee & Choi, ICCV 2025"
    # `--set method.distribution=true` reads as TOML's boolean; the word is meant.
    distribution: Annotated[Literal["true", "norm", "wdr"], BeforeValidator(lambda v: "true" if v is True else v)] = Field(
        "wdr", description="π̂: true counts, or norms without/with WDR")
    layers: Layers = Field("output", description="which layers are class-wise: all, output, or the upper n")
    wdr: float = Field(10.0, ge=0, description="strength λ of the regulariser as reported (10 CIFAR-10, 1000 CIFAR-100)")
    wdr_half: bool = Field(True, description="use λ/2, as the reference code does for the reported λ")

    def adapt(self, model: nn.Module) -> nn.Module:
        head_of(model, self.name)
        return model

    def server_state(self, setup: Setup) -> State:
        model = setup.initial()
        return {"model": model, "uploads": model[None, setup.layout.columns(self.layers)].clone(),
                "weights": torch.ones(1).double(), "shares": torch.ones(setup.classes, 1).double(),
                "distributions": torch.full((setup.clients, setup.classes), 1 / setup.classes).double()}

    def send(self, server: State, cohort: Cohort) -> Message:
        matrix = mixing_matrix(server["distributions"][cohort.ids], server["shares"], server["weights"])
        own = mixing.mix(matrix, server["uploads"])
        lower = server["model"][:len(server["model"]) - own.shape[1]]
        return {"lower": lower, "classwise": own} if len(lower) else {"classwise": own}

    def received(self, fleet: Fleet, inbox: State) -> Tensor:
        own = inbox["classwise"]
        return torch.cat([inbox["lower"].expand(len(own), -1), own], dim=1) if "lower" in inbox else own

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        fit = functional.cross_entropy(model(batch.x), batch.y)
        if self.distribution != "wdr" or not self.wdr:
            return fit
        difference = lane.distribution - norm_distribution(model.head.weight)
        return fit + self._strength() * (difference.square().sum() + FLOOR).sqrt()

    def fit(self, fleet: Fleet, rows: Tensor, inbox: State, **how: Any) -> Tensor:
        return fleet.train(rows, distribution=true_distribution(fleet.counts).to(rows), **how)

    def update(self, fleet: Fleet, inbox: State) -> Message:
        message = super().update(fleet, inbox)
        truth = {"distribution": true_distribution(fleet.counts).float()} if self.distribution == "true" else {}
        return {**message, **truth}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        super().aggregate(server, cohort, uplink)
        estimates = uplink["distribution"].double() if "distribution" in uplink else self._estimate(cohort, uplink)
        server["weights"] = cohort.weights
        server["shares"] = class_weights(estimates, cohort.weights)
        server["uploads"] = uplink["model"][:, -server["uploads"].shape[1]:].clone()
        server["distributions"] = server["distributions"].index_copy(0, torch.from_numpy(cohort.ids), estimates)

    def _strength(self) -> float:
        return self.wdr / 2 if self.wdr_half else self.wdr

    def _estimate(self, cohort: Cohort, uplink: State) -> Tensor:
        """π̂ [n, K] read off the uploaded output layers."""
        head = uplink["model"][:, cohort.layout.columns("head.weight")]
        return norm_distribution(head.double().view(*cohort.counts.shape, -1))


def true_distribution(counts: Tensor) -> Tensor:
    """π [n, K] of training counts ``[n, K]``; uniform for a client without samples."""
    total = counts.sum(dim=1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1), 1 / counts.shape[1])


def class_models(server: State) -> Tensor:
    """The K class models' class-wise columns ``[K, P_cw]``, G = Q·W, from a server's state: to be looked at."""
    return mixing.mix(server["shares"], server["uploads"])


plugin = CwFedAvg
