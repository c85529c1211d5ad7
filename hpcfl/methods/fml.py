"""FML: mutual distillation between a private model and a copy of the global model.

Shen et al., "Federated mutual learning", arXiv 2006.16765; FITEE 2023. A client has a
copy of the global model w, the "meme", and a private model v_i. Let p_g and p_l be
the predictions of the meme and of v_i on a mini-batch. v_i takes a step along α·CE + (1
− α)·KL(p_g ‖ p_l). The meme takes one along β·CE + (1 − β)·KL(p_l ‖ p_g). Both steps
use the same forward passes. w becomes the uniform mean of the memes; v_i stays with its
client. The result is v_i after training; ``global`` scores w.

The codes differ (methods-3.md §11, item 9). PFLlib's divergence is a mean over batch
and classes, K times weaker than the text's mean over the batch; here this is ``kl =
"elements"``. In PFLlib each model also receives the gradient of the other's divergence
through its own prediction, as with ``detach = false``. By default the teacher's
prediction is a constant, as in deep mutual learning. PFLlib's defaults α = 1, β = 0
leave the meme without labels and v_i without a teacher. Both models are one row, so
``training.clip`` bounds the norm of both gradients together.
"""

import copy
from typing import Any, Literal

import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from hpcfl.methods._shared_part import PrivatePart
from hpcfl.methods.base import (
    Batch,
    ClientModel,
    Fleet,
    Inbox,
    Layout,
    Setup,
    head_of,
    search,
)


class FML(PrivatePart):
    """State and traffic of FML.

    Server: ``model``, a client's whole row: w [P], then the initial v. Client: v_i [P],
    under FedPer's name ``head`` for the private columns. Down P, up P.
    """

    primary = "post"
    family = "personal beside global"
    reference = "Shen et al., arXiv 2006.16765"
    trains = {}  # all trained parameters are in both models
    weights: Literal["samples", "uniform"] = Field(
        "uniform", description="weights of the clients' memes in the global model"
    )
    alpha: float = Field(
        0.5,
        ge=0,
        le=1,
        description="weight α of the labels in the loss of v_i; 1 is Local",
        json_schema_extra=search(
            [0.1, 0.3, 0.5, 0.7, 0.9], "no range in the paper: around the default"
        ),
    )
    beta: float = Field(
        0.5,
        ge=0,
        le=1,
        description="weight β of the labels in the loss of the meme; 1 is FedAvg",
        json_schema_extra=search(
            [0.1, 0.3, 0.5, 0.7, 0.9], "no range in the paper: around the default"
        ),
    )
    kl: Literal["batch", "elements"] = Field(
        "batch",
        description="divergence: mean over the mini-batch, or also over classes",
    )
    detach: bool = Field(
        True, description="treat the teacher's prediction as a constant in a divergence"
    )

    def notes(self, setup: Setup) -> list[str]:
        if setup.training.buffers != "average":
            return []
        return [
            "fml: training.buffers = 'average' also shares the batch-norm statistics of the "
            "private models"
        ]

    def adapt(self, model: nn.Module) -> nn.Module:
        head_of(model, self.name)
        model.mine = copy.deepcopy(model)
        return model

    def find_private_columns(self, layout: Layout) -> slice:
        return slice(layout.columns("head").stop, layout.width)

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        meme = model(batch.x).log_softmax(dim=1)
        mine = predict_by_private_model(model, batch.x, lane).log_softmax(dim=1)
        of_mine = functional.nll_loss(mine, batch.y)
        of_meme = functional.nll_loss(meme, batch.y)
        to_mine = self.compute_divergence(meme, mine)
        to_meme = self.compute_divergence(mine, meme)
        teaching = (1 - self.alpha) * to_mine + (1 - self.beta) * to_meme
        regulariser: Tensor = lane.regulariser(teaching)
        return self.alpha * of_mine + self.beta * of_meme + regulariser

    def compute_divergence(self, teacher: Tensor, pupil: Tensor) -> Tensor:
        """Return KL(teacher ‖ pupil) as a mean over the mini-batch.

        Args:
            teacher: The log-probabilities of the teacher, [batch, K].
            pupil: The log-probabilities of the pupil, [batch, K].
        """
        if self.detach:
            teacher = teacher.detach()
        terms = teacher.exp() * (teacher - pupil)
        return terms.mean() if self.kl == "elements" else terms.sum(dim=1).mean()

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(rows, predict_by_private_model)

    def init_newcomers(self, fleet: Fleet, inbox: Inbox) -> None:
        """Initialise the newcomers' private models with the global model."""
        received = self.prepare(fleet, inbox)["body"]
        fleet.state["head"] = received.expand(len(fleet.ids), -1).clone()


def predict_by_private_model(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return the logits [batch, K] of the private model v_i."""
    logits: Tensor = model.get_submodule("mine")(x)
    return logits


plugin = FML
