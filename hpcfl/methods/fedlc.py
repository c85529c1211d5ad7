"""FedLC: FedAvg whose clients subtract a margin from each logit in training, largest
for rare classes.

Zhang et al., "Federated learning with label distribution skew via logits calibration",
ICML 2022. Let n_ik be the training samples of class k. A client minimises CE(z_k −
τ·n_ik^(−1/4), y): the margin requires larger logits of rare classes. Scores use models
without it.

As in all known codes, the softmax has all classes in its denominator. The text has only
the wrong classes, for which training is reported to collapse. The n_ik are the client's
numbers. PFLlib uses the numbers of all clients together, so that all have the same
margin. An absent class counts 10⁻⁸, so that its margin is 100τ (methods-3.md §13, item
9).
"""

from typing import Any

import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods.base import Batch, Fleet, Inbox, State, search
from hpcfl.methods.fedavg import FedAvg

FLOOR = 1e-8  # the count of an absent class


class FedLC(FedAvg):
    """State and traffic of FedLC.

    Server: ``model`` [P]. Client: none. Down P, up P.
    """

    reference = "Zhang et al., ICML 2022"
    keeps = ("ala", "aggregation")
    tau: float = Field(
        1.0,
        ge=0,
        description="strength τ of the margins (0.1 in fluke); 0 is FedAvg",
        json_schema_extra=search([0.1, 1.0, 10.0], "fluke's, FL-bench's and ten times"),
    )

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        return functional.cross_entropy(model(batch.x) - lane.margin, batch.y)

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        """Add the ``margin`` of each class, [n, K]."""
        # Roots replace other powers, whose last bits depend on other clients.
        roots = fleet.counts.clamp(min=FLOOR).sqrt().sqrt()
        margin = self.tau / roots
        return {
            **super().loss_variables(fleet, inbox),
            "margin": margin.float().to(fleet.resources.device),
        }


plugin = FedLC
