"""FedEM: every client's data are a mixture of the same components, with one model per
component; a round is one EM step.

Marfoq et al., "Federated multi-task learning under a mixture of distributions", NeurIPS
2021. Clients receive L models θ_l. Client i has weights π_i of the components, at first
1/L. E: for each of its samples q_s(l) ∝ π_il exp(−CE(θ_l; s)), by the received models
in evaluation mode. M: π_i becomes the mean of its q_s. Each θ_l is trained on the mean
of q_s(l)·CE, with q constant in the round. The server computes θ_l ← Σ_S p_i θ_il. A
client predicts by log Σ_l π_il softmax(z_l). The result is ``pre``, before local
training, with the π_i of its last round. ``global`` has equal weights of all
components.

Predictions mix probabilities, as in the authors' code; FL-bench mixes logits. The
authors' code averages over all clients, with the old models of those outside the
cohort. Here averages cover the cohort, as everywhere (methods-3.md §17). The components
start as different random draws, because equal ones would remain equal. In the code each
learner has an optimiser. Here all L models are one row, so ``training.clip``
bounds their gradients together.
"""

import copy
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hpcfl.methods._server_model import ServerModel
from hpcfl.methods.base import (
    Batch,
    ClientModel,
    Fleet,
    Inbox,
    Setup,
    State,
    evaluate_at,
    search,
)

FLOOR = 1e-12  # the smallest probability of a class and weight of a component


class Components(nn.Module):
    """L copies of a model side by side; their own forward pass has equal weights."""

    def __init__(self, model: nn.Module, count: int):
        super().__init__()
        copies = [copy.deepcopy(model) for _ in range(count)]
        self.components = nn.ModuleList(copies)

    def forward(self, x: Tensor) -> Tensor:
        """Return logarithms of the mean probabilities [batch, K]."""
        mean = compute_log_probabilities(self, x).exp().mean(dim=2)
        return mean.clamp(min=FLOOR).log()


class FedEM(ServerModel):
    """State and traffic of FedEM.

    Server: ``model`` [L·P], the components one after the other. Client: ``mixture`` π_i
    [L]. Down L·P, up L·P.
    """

    family = "mixture of models"
    reference = "Marfoq et al., NeurIPS 2021"
    short = {"components": 2}
    components: PositiveInt = Field(
        3,
        le=100,
        description="number L of components; 1 is FedAvg",
        json_schema_extra=search([2, 3], "around the authors' 3"),
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        return Components(model, self.components)

    def server_state(self, setup: Setup) -> State:
        components = []
        for component in range(self.components):
            # Each component takes its part of a different draw of all components.
            draw = setup.initial(component)
            # A copy, so that the memory of the other parts is freed.
            components.append(draw.chunk(self.components)[component].clone())
        return {"model": torch.cat(components)}

    def client_state(self, setup: Setup) -> State:
        even = torch.full((self.components,), 1 / self.components)
        return {**super().client_state(setup), "mixture": even}

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """Return Σ_l mean_s q_s(l)·CE(θ_l; s), with q of the received models."""

        def predicted(components: nn.Module) -> Tensor:
            return compute_log_probabilities(components, batch.x)

        received = evaluate_at(model, lane.received, predicted, lane.statistics)
        weights = compute_responsibilities(received, lane.mixture)
        terms = weights * predicted(model)
        samples = torch.arange(len(batch.y), device=batch.y.device)
        of_label: Tensor = terms[samples, batch.y]
        return -of_label.sum(dim=1).mean()

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        return {
            "received": fleet.rows(self.received(fleet, inbox)),
            "mixture": fleet.state["mixture"],
            "statistics": fleet.buffers(),
        }

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        mixture = self.compute_mixture(fleet, self.received(fleet, inbox))
        trained = super().local_train(fleet, rows, inbox)
        fleet.state["mixture"] = mixture
        return trained

    def compute_mixture(self, fleet: Fleet, received: Tensor) -> Tensor:
        """Return the clients' next π [n, L], the means of q_s over their samples under
        the ``received`` models.
        """
        mixture = fleet.state["mixture"]
        classes = fleet.setup.classes
        # This computes q_s for every possible label; the true label's value is selected
        # below.
        means = fleet.class_means(
            received, compute_responsibilities_by_label, variables={"mixture": mixture}
        )
        by_label = means.view(-1, classes, classes, self.components)
        of_class = by_label.diagonal(dim1=1, dim2=2).transpose(1, 2)  # [n, K, L]
        counts = fleet.counts.to(of_class)[:, :, None]
        samples = counts.sum(dim=1)
        mean = (counts * of_class).sum(dim=1) / samples.clamp(min=1)
        return torch.where(samples > 0, mean, mixture)

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        return ClientModel(rows, mix_predictions, {"mixture": fleet.state["mixture"]})


def compute_log_probabilities(model: nn.Module, x: Tensor) -> Tensor:
    """Return the log-probability of each class under each component, [batch, K, L]."""
    logarithms = []
    for component in model.get_submodule("components").children():
        logarithms.append(component(x).log_softmax(dim=1))
    return torch.stack(logarithms, dim=2)


def compute_responsibilities(log_probabilities: Tensor, mixture: Tensor) -> Tensor:
    """Return q [batch, K, L] of samples, for each possible label.

    Args:
        log_probabilities: The log-probability of each class under each component,
            [batch, K, L].
        mixture: The weights π [L].
    """
    weights = mixture.clamp(min=FLOOR).log()
    return (log_probabilities + weights).softmax(dim=2)


def compute_responsibilities_by_label(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return ``compute_responsibilities`` under ``lane.mixture``, [batch, K·L]."""
    return compute_responsibilities(
        compute_log_probabilities(model, x), lane.mixture
    ).flatten(1)


def mix_predictions(model: nn.Module, x: Tensor, lane: Any) -> Tensor:
    """Return logarithms of Σ_l π_l softmax(z_l), [batch, K]."""
    probabilities = compute_log_probabilities(model, x).exp()
    mean: Tensor = (probabilities * lane.mixture).sum(dim=2)
    return mean.clamp(min=FLOOR).log()


plugin = FedEM
