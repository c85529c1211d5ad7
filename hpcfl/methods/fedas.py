"""FedAS: clients align the received body to their last features; the server weights
bodies by Fisher information.

Yang, Huang & Ye, "FedAS: Bridging inconsistency in personalized federated learning",
CVPR 2024. FedAS is FedPer with three changes. (A) Let c_k be the mean features of class
k under the client's last body. Before local training the received body takes one epoch
of plain steps along Σ_k mean of (φ(x) − c_k)². The mean covers the mini-batch's samples
of class k and all coordinates, so each class has the same weight. (B) Body and head are
trained together. (C) After training t_i = Σ over mini-batches of ‖∇ cross-entropy‖²,
the trace of an empirical Fisher information, and b ← Σ_S t_i b_i/Σ_S t_i. A client with
a good fit or few mini-batches thus has less weight. ``fisher = "mean"`` divides by the
number of mini-batches.

The authors score each client's model after its last local training: ``post``. Further
choices are (methods-3.md §10):

* In the authors' code a round's clients align one model object one after the other;
  here each client aligns the received body.
* (A) has the experiment's batch size; theirs is 16.
* (C) runs in training mode, with each mini-batch's statistics of batch norm; theirs
  uses the running ones.
* Clients outside the cohort compute no t_i; in their code it is only logged there.
* Bodies are weighted by samples if no t_i is positive. The key ``weights`` has no
  further effect.
* In a client's first round its old body is the initial one, as in their code.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as functional
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn

from hpcfl.methods._shared_part import SharedBody
from hpcfl.methods.base import (
    Batch,
    Cohort,
    Fleet,
    Inbox,
    Mean,
    Message,
    State,
    StepContext,
    parts,
    search,
)
from hpcfl.methods.fedproto import compute_features
from hpcfl.rows import mixing

# Weight of a sample without a trace, negligible compared with any positive float32.
NEGLIGIBLE = 2.0**-300


class FedAS(SharedBody):
    """State and traffic of FedAS.

    Server: ``model`` [P], the shared body followed by the initial head. Client:
    ``model`` [P], its last. Down P_b, up P_b + 1 (t_i). The traces are recorded as
    ``fisher_trace``.
    """

    primary = "post"
    reference = "Yang et al., CVPR 2024"
    needs_head = "any"
    last_model = "model"
    inherited = ("model",)
    align_epochs: NonNegativeInt = Field(
        1,
        description="epochs of the alignment to the client's last features; 0: no alignment",
    )
    align_lr: float = Field(
        0.01,
        gt=0,
        description="learning rate of the alignment's plain steps",
        json_schema_extra=search(
            [0.001, 0.01, 0.1],
            "no range in the paper: a tenth and ten times the default",
        ),
    )
    fisher: Literal["sum", "mean"] = Field(
        "sum", description="sum or mean of the squared gradients over mini-batches"
    )

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the shared body with each client's own head, ``[n, P]``."""
        heads = self.cut_private_part(fleet.layout, fleet.state["model"])
        return self.add_own_heads(fleet.layout, inbox, heads)

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        aligned = self.align_bodies(fleet, rows)
        return fleet.train(aligned, variables=self.loss_variables(fleet, inbox))

    def align_bodies(self, fleet: Fleet, rows: Tensor) -> Tensor:
        """Return ``rows`` [n, P] after (A), with bodies aligned to the clients' last
        features.
        """
        means = fleet.class_means(fleet.state["model"], compute_features)
        aligned, _ = fleet.train_by(
            lambda context: context.descend(self.align_lr),
            rows,
            loss=self.compute_distance,
            params=("body",),
            epochs=self.align_epochs,
            phase="align",
            variables={"means": means},
        )
        return aligned

    def compute_distance(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """Return the loss of (A): the mean squared distance of the features from
        ``lane.means`` [K, d] per class, summed over the mini-batch's classes.
        """
        away = parts(model).features(batch.x) - lane.means[batch.y]
        of_samples: Tensor = away.square().mean(dim=1)
        classes = functional.one_hot(batch.y, len(lane.means)).to(of_samples)
        # Number of samples in the mini-batch with the same class.
        alike = classes.sum(dim=0)[batch.y]
        return (of_samples / alike).sum()

    def compute_traces(self, fleet: Fleet, inbox: Inbox, rows: Tensor) -> Tensor:
        """Return the trace t_i of (C) for each client at its model in ``rows`` [n, P],
        float32 [n].
        """

        def add_squares(context: StepContext) -> None:
            squares = mixing.sum_rows(context.gradient().square())[:, None]
            context.variables["trace"] = context.variables["trace"] + squares
            context.variables["steps"] = context.variables["steps"] + 1

        zeros = rows.new_zeros(len(rows), 1)
        with fleet.trial():
            _, after = fleet.train_by(
                add_squares,
                rows,
                epochs=1,
                phase="fisher",
                variables={
                    **self.loss_variables(fleet, inbox),
                    "trace": zeros,
                    "steps": zeros,
                },
            )
        if self.fisher == "mean":
            return (after["trace"] / after["steps"].clamp(min=1))[:, 0]
        return after["trace"][:, 0]

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        traces = self.compute_traces(fleet, inbox, trained)
        fleet.record("fisher_trace", traces)
        shares = self.shares(fleet).to(traces.device)
        # float64, because traces may differ by many powers of ten.
        weights = torch.where(traces > 0, traces.double(), NEGLIGIBLE * shares)
        weights = weights[:, None]
        bodies = self.cut_shared_part(fleet.layout, trained)
        equally = torch.ones(len(trained))
        return {
            "body": Mean(weights * bodies, equally),
            "trace": Mean(weights, equally),
        }

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        body = (uplink["body"] / uplink["trace"]).to(server["model"].dtype)
        super().aggregate(server, cohort, {"body": body})


plugin = FedAS
