"""FedAMP: each client trains with a proximal term to a mix of similar models.

Huang et al., "Personalized cross-silo federated learning on non-IID data", AAAI 2021.
Over the clients j ≠ i with an upload in the last round, ξ_ij = (α/σ)·exp(−‖w_i −
w_j‖²/σ) and u_i = (1 − Σ_j ξ_ij) w_i + Σ_j ξ_ij w_j. Clients minimise F_i(w) + (λ/2α)‖w
− u_i‖² from their own w_i; in round 1 the second term is absent. For close models and a
large α/σ, Σ_j ξ_ij exceeds 1 and u_i extrapolates; the key ``cap`` prevents it.

PFLlib's code computes the proximal term's gradient from detached tensors, so it is zero
and the code trains Local. Here the term acts, and is squared (methods-1.md §9, item 9).
"""

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hpcfl.methods._anchored import MixedAnchor
from hpcfl.methods.base import UNWEIGHTED, search
from hpcfl.rows import mixing


class FedAMP(MixedAnchor):
    """State and traffic of FedAMP.

    Server: ``models`` [M, P], ``uploaded`` [M]. Client: ``model`` [P]. Down P (the
    anchor u), up P.
    """

    reference = "Huang et al., AAAI 2021"
    readers = {**UNWEIGHTED, "proximal": {None: ("lam",)}}
    alpha: float = Field(
        1000.0,
        ge=0,
        description="step size α of the server",
        json_schema_extra=search([10000.0, 1000.0, 100.0, 10.0, 1.0, 0.1], "FedALA"),
    )
    lam: float = Field(
        1.0,
        ge=0,
        description="strength λ of the proximal term (λ/2α)‖w − u‖²; 0 is Local",
        json_schema_extra=search([100.0, 10.0, 1.0, 0.1, 0.01], "FedALA"),
    )
    sigma: float = Field(
        0.1,
        gt=0,
        description="width σ of the attention exp(−D²/σ)",
        json_schema_extra=search([1.0, 0.5, 0.1, 0.05, 0.01], "FedALA"),
    )
    relative: bool = Field(
        False,
        description="multiply σ by the median squared distance between uploads",
    )
    cap: bool = Field(
        False,
        description="scale a client's ξ down to sum 1 if their sum is above 1, so that u is no "
        "extrapolation",
    )
    proximal: float | None = Field(
        None,
        ge=0,
        description="strength of the proximal term; default: λ/α; required if α = 0",
    )

    @model_validator(mode="after")
    def _strength_is_given(self) -> "FedAMP":
        if self.alpha == 0 and self.proximal is None:
            raise ValueError(
                "alpha = 0 makes the strength λ/α infinite; set 'proximal'"
            )
        return self

    def compute_strength(self) -> float:
        return self.lam / self.alpha if self.proximal is None else self.proximal

    def compute_attraction(
        self, models: Tensor, receivers: Tensor, senders: Tensor
    ) -> Tensor:
        distances = mixing.compute_distances_within(models, receivers, senders)
        itself = receivers[:, None] == senders
        width = self.compute_width(models, senders)
        attention = self.alpha / width * (-distances.square() / width).exp()
        attention = attention.masked_fill(itself, 0)
        if self.cap:
            attention = attention / attention.sum(dim=1, keepdim=True).clamp(min=1)
        return attention

    def compute_width(self, models: Tensor, senders: Tensor) -> float:
        """Return the width of the attention: σ, with ``relative`` times the median
        squared distance between two uploads, if there is a positive one.

        Args:
            models: Each client's last upload [M, P].
            senders: The numbers of the clients with an upload in the last round [n].
        """
        if not self.relative:
            return self.sigma
        distances = mixing.compute_distances_within(models, senders, senders)
        is_pair = ~torch.eye(len(senders), dtype=torch.bool)
        # NaN for a single upload.
        median = float(distances.square()[is_pair].median())
        return self.sigma * median if median > 0 else self.sigma


plugin = FedAMP
