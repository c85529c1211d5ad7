"""MR-MTL: personal models with a proximal term to their mean (mean-regularised
multi-task learning).

Liu et al., "On privacy and personalization in cross-silo federated learning", NeurIPS
2022. Client i continues from its own model w_i and minimises F_i(w) + (λ/2)‖w − w̄‖².
w̄, the mean of all clients' models, is constant in the round. Unlike Ditto's the anchor
is not trained itself. The result is w_i after training; ``global`` scores w̄. The
paper's differential privacy is ``[privacy] unit = "sample"``, which adds the λ term
after the noise.

The authors' code trains all clients in each round, and w̄ moves by the mean of their
changes. With a cohort S the mean change is multiplied by S's share of all clients'
weight: w̄ ← w̄ + (Σ_S N_i/Σ_M N_i) Σ_S p_i (w_i⁺ − w_i). This keeps w̄ the mean of all
w_i (methods-3.md §20).
"""

from pydantic import Field
from torch import Tensor

from hpcfl.methods._anchored import Anchored
from hpcfl.methods.base import (
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    State,
    search,
)


class MRMTL(Anchored):
    """State and traffic of MR-MTL.

    Server: ``model`` w̄ [P]. Client: ``model`` w_i [P]. Down P, up P, its change.
    """

    family = "personal models"
    reference = "Liu et al., NeurIPS 2022"
    inherited = ("model",)
    lam: float = Field(
        0.1,
        ge=0,
        description="strength λ of the proximal term to the mean (the authors' script 0.001); "
        "0 is Local",
        json_schema_extra=search(
            [0.001, 0.01, 0.1, 1.0, 10.0], "around the authors' script"
        ),
    )

    def compute_strength(self) -> float:
        return self.lam

    def send(self, server: State, audience: Audience) -> Message:
        return {"anchor": server["model"]}

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        change = trained - inbox["own"]
        return {"change": Mean(change, self.shares(fleet), change_of="anchor")}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        share = cohort.share_of_clients
        if not cohort.uniform:
            share = float(cohort.shares.sum() / cohort.setup.samples.sum())
        server["model"] = server["model"] + share * uplink["change"]


plugin = MRMTL
