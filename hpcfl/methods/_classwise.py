"""Class-wise aggregation: average per class, and give each client the mix of the class models under its
class distribution.

Lee & Choi, "Class-wise federated averaging" (arXiv 2406.07800 v1; ICCV 2025). With π̂_i the class
distribution of client i and p_l its data share, class model j is G_j = Σ_l q_lj w_l, q_lj ∝ p_l
π̂_lj, and client i starts from Σ_j π̂_ij G_j: one mixing matrix A = Π·Q, so that no class model
is ever built (``class_models`` builds them to be looked at). The module is cwFedAvg's and, by
``aggregation = "class-wise"``, an option of other methods, with the paper's settings for CIFAR-10.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hpcfl.communication.message import Field, Inbox, Message
from hpcfl.fleet import Fleet
from hpcfl.methods.base import Audience, Cohort, Layers, Setup, State
from hpcfl.models import parts
from hpcfl.rows import mixing
from hpcfl.rows.layout import Layout

FLOOR = 1e-12  # under square roots, whose gradient at 0 is not a number


def norm_distribution(head: Tensor) -> Tensor:
    """π̂ [..., K] of output weights ``[..., K, d]`` without bias: row norms over their sum;
    1/K if all are zero."""
    norms = (head.square().sum(dim=-1) + FLOOR).sqrt()
    return norms / norms.sum(dim=-1, keepdim=True)


def true_distribution(counts: Tensor) -> Tensor:
    """π [n, K] of training counts ``[n, K]``; uniform for a client without samples."""
    total = counts.sum(dim=1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1), 1 / counts.shape[1])


def class_weights(distributions: Tensor, weights: Tensor) -> Tensor:
    """Q [K, n]: client l's share in class model j, p_l π̂_lj / Σ_m p_m π̂_mj; a row of zeros for
    a class nobody holds."""
    mass = weights[:, None] * distributions
    total = mass.sum(dim=0, keepdim=True)
    return torch.where(total > 0, mass / total.clamp(min=1e-300), 0).T


def mixing_matrix(distributions: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """A [m, n] = Π·Q for receivers' π̂ ``[m, K]``, over the classes that somebody holds; without any,
    the average's row."""
    held = torch.where(shares.sum(dim=1) > 0, distributions, 0)
    total = held.sum(dim=1, keepdim=True)
    return torch.where(total > 0, held / total.clamp(min=1e-300) @ shares, weights)


def class_models(server: State) -> Tensor:
    """The K class models' class-wise columns ``[K, P_cw]``, G = Q·W, from a server's state:
    to be looked at."""
    return mixing.mix(server["shares"], server["uploads"])


@dataclass(frozen=True)
class ClassWise:
    """Server state: ``uploads`` [n, P_cw] class-wise columns, ``weights`` [n] p, ``shares`` Q [K, n],
    ``distributions`` π̂ [M, K], beside FedAvg's mean ``model`` [P]. Keys: see ``CwFedAvg``.
    """

    distribution: Literal["true", "norm", "wdr"] = "wdr"
    layers: Layers = "output"
    strength: float = 5.0  # λ/2 for the reported λ = 10

    def server_state(self, setup: Setup, model: Tensor) -> State:
        return {"uploads": model[None, setup.layout.columns(self.layers)].clone(),
                "weights": torch.ones(1).double(), "shares": torch.ones(setup.classes, 1).double(),
                "distributions": torch.full((setup.clients, setup.classes), 1 / setup.classes).double()}

    def send(self, server: State, audience: Audience) -> Message:
        matrix = mixing_matrix(server["distributions"][audience.ids], server["shares"], server["weights"])
        own = mixing.mix(matrix, server["uploads"])
        lower = server["model"][:len(server["model"]) - own.shape[1]]
        return {"lower": lower, "classwise": own} if len(lower) else {"classwise": own}

    def received(self, inbox: Inbox) -> Tensor:
        """The clients' own start models ``[n, P]``."""
        own = inbox["classwise"]
        return torch.cat([inbox["lower"].expand(len(own), -1), own], dim=1) if "lower" in inbox else own

    def variables(self, fleet: Fleet, rows: Tensor) -> State:
        """What ``penalty`` needs of each client, beside its model in ``rows``."""
        return {"distribution": true_distribution(fleet.counts).to(rows)}

    def penalty(self, model: nn.Module, lane: Any) -> Tensor | None:
        """The regulariser λ‖π − π̂(w)‖₂ that makes the norms of the output layer's rows follow the
        true distribution."""
        if self.distribution != "wdr" or not self.strength or not hasattr(lane, "distribution"):
            return None
        difference = lane.distribution - norm_distribution(parts(model).head.weight)
        distance: Tensor = (difference.square().sum() + FLOOR).sqrt()
        return self.strength * distance

    def uplink(self, fleet: Fleet, models: Tensor) -> Message:
        """What goes up beside the models ``[n, P]``; notes how far the estimates are from the truth."""
        truth = true_distribution(fleet.counts)
        estimates = self.estimates(fleet.layout, fleet.counts, models)
        fleet.record("distribution_distance", (estimates - truth).norm(dim=1))
        start = fleet.layout.columns(self.layers).start
        rows = Field(models[:, start:], floats=0)  # they are a part of the model, which is counted
        return {"classwise": rows, **({"distribution": truth.float()} if self.distribution == "true" else {})}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        estimates = (uplink["distribution"].double() if "distribution" in uplink
                     else self.estimates(cohort.layout, cohort.counts, uplink["classwise"]))
        server["weights"] = cohort.weights
        server["shares"] = class_weights(estimates, cohort.weights)
        server["uploads"] = uplink["classwise"]
        server["distributions"] = server["distributions"].index_copy(
            0, torch.from_numpy(cohort.ids), estimates)

    def estimates(self, layout: Layout, counts: Tensor, models: Tensor) -> Tensor:
        """π̂ [n, K] read off the output layers of models ``[n, P]``, or of their upper columns, on the CPU."""
        columns, lower = layout.columns("head.weight"), layout.width - models.shape[1]
        head = models[:, columns.start - lower:columns.stop - lower].double().cpu()
        return norm_distribution(head.view(*counts.shape, -1))
