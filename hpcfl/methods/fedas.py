"""FedAS: the received body is first aligned to the client's own old features, and
bodies weigh by how much Fisher information is in their client's data.

Yang, Huang & Ye, "FedAS: Bridging inconsistency in personalized federated learning",
CVPR 2024. FedPer, with two differences. (A) Before local training, with c_k the mean
features of class k under the client's own last body, the received body takes one epoch
of plain steps along Σ_k mean over the mini-batch's samples of class k, and over
coordinates, of (φ(x) − c_k)², in which each class of the mini-batch has the same
weight. (B) Body and head are trained together. (C) After that t_i = Σ over mini-batches
of ‖∇ cross-entropy‖², the trace of an empirical Fisher information, and b ← Σ_S t_i
b_i/Σ_S t_i. The server so trusts a client less that fits its data well already, or that
has few of them, because the sum grows with their number: ``fisher = "mean"`` divides by
the number of mini-batches.

The authors score each client's model after its last local training: ``post``. Where
they are silent or differ (methods-3.md §10): in their code the clients of a round align
one model object one after the other, here each client aligns the received body; (A) has
the experiment's batch size, theirs is 16; (C) runs in training mode, so that the gradients
of a batch-normalised model are those of each mini-batch's statistics, where theirs are of
the running ones; clients outside the cohort compute no t_i, which is only logged there;
bodies weigh by samples where no t_i is positive. In a client's first round its old body is
the initial one, as there. Of the key ``weights`` no more than that is left.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as functional
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn

from hpcfl.clients import Fleet, StepContext
from hpcfl.clients.losses import Batch
from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.methods._shared_body import SharedBody
from hpcfl.methods.base import Cohort, Setup, State, head_of, search
from hpcfl.methods.fedproto import features
from hpcfl.models import parts
from hpcfl.rows import mixing
from hpcfl.rows.layout import Group

NONE = 1e-30  # next to no weight, beside which any trace that is not 0 counts alone


class FedAS(SharedBody):
    """Server: ``model`` [P], the shared body followed by the initial head. Client:
    ``model`` [P], its last.

    Down P_b, up P_b + 1 (t_i). The traces are recorded as ``fisher_trace``.
    """

    primary = "post"
    reference = "Yang et al., CVPR 2024"
    inherited: ClassVar[tuple[str, ...]] = ("model",)
    trains: ClassVar[Mapping[Group, str]] = {
        "body": "nothing would be shared",
        "head": "nothing would be a client's own",
    }
    align_epochs: NonNegativeInt = Field(
        1, description="epochs of the alignment to the own old features; 0 is without"
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
        "sum", description="squared gradients of all mini-batches, or of one on average"
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        head_of(model, self.name)
        return model

    def client_state(self, setup: Setup) -> State:
        return {**super().client_state(setup), "model": setup.initial()}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The shared body with each client's own head, ``[n, P]``."""
        heads = self.private_part(fleet.layout, fleet.state["model"])
        return self.under_own_heads(fleet.layout, inbox, heads)

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        return fleet.train(self.aligned(fleet, rows))

    def aligned(self, fleet: Fleet, rows: Tensor) -> Tensor:
        """(A): ``rows`` [n, P], whose bodies are pulled to the clients' old features."""
        means = fleet.class_means(fleet.state["model"], features)
        aligned, _ = fleet.train_by(
            lambda context: context.apply_elementwise(
                lambda rows, gradient: rows.sub_(self.align_lr * gradient)
            ),
            rows,
            loss=self.distance,
            params=("body",),
            epochs=self.align_epochs,
            phase="align",
            variables={"means": means},
        )
        return aligned

    def distance(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """(A)'s loss: of each class in the mini-batch the mean squared distance of its
        features from ``lane.means`` [K, d], added up.
        """
        away = parts(model).features(batch.x) - lane.means[batch.y]
        of_samples: Tensor = away.square().mean(dim=1)
        classes = functional.one_hot(batch.y, len(lane.means)).to(of_samples)
        alike = classes.sum(dim=0)[batch.y]  # samples of the same class in the batch
        return (of_samples / alike).sum()

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        super().store_state(fleet, trained)
        fleet.state["model"] = trained

    def traces(self, fleet: Fleet, rows: Tensor) -> Tensor:
        """(C): the trace t_i of each client at its model in ``rows`` [n, P], float32 [n]."""

        def add_squares(context: StepContext) -> None:
            squares = mixing.row_sums(context.gradient().square())[:, None]
            context.variables["trace"] = context.variables["trace"] + squares
            context.variables["steps"] = context.variables["steps"] + 1

        zeros = torch.zeros(len(rows), 1, device=rows.device)
        with fleet.trial():
            _, after = fleet.train_by(
                add_squares,
                rows,
                epochs=1,
                phase="fisher",
                variables={"trace": zeros, "steps": zeros},
            )
        if self.fisher == "mean":
            return (after["trace"] / after["steps"].clamp(min=1))[:, 0]
        return after["trace"][:, 0]

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        traces = self.traces(fleet, trained)
        fleet.record("fisher_trace", traces)
        shares = self.shares(fleet).to(traces.device)
        # In double precision, because traces may be many powers of ten apart.
        weights = torch.where(traces > 0, traces.double(), NONE * shares)[:, None]
        bodies = trained[:, : self.private(fleet.layout).start]
        equally = torch.ones(len(trained))
        return {
            "body": Mean(weights * bodies, equally),
            "trace": Mean(weights, equally),
        }

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        body = (uplink["body"] / uplink["trace"]).to(server["model"].dtype)
        super().aggregate(server, cohort, {"body": body})


plugin = FedAS
