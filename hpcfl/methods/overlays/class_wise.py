"""Class-wise aggregation: the server averages one model per class, and each client
receives a mix of these class models.

Lee & Choi, "Class-wise federated averaging" (arXiv 2406.07800 v1; ICCV 2025). Let π̂_i
[K] be the estimated class distribution of client i and p_l the weight of client l. The
model of class j is G_j = Σ_l q_lj w_l with q_lj = p_l π̂_lj / Σ_m p_m π̂_mj. Client i
starts from Σ_j π̂_ij G_j. As matrices, the starts are Π·G with G = Q·W.

If a cohort has many more clients than there are classes, the server computes and sends
G in float64, so that a start is rounded only once. Otherwise it sends the starts
(Π·Q)·W without computing class models; ``compute_class_models`` computes them for export.

cwFedAvg uses this aggregation. Other methods whose server averages whole models use it
with ``aggregation = "class-wise"`` (``FedAvg``) and the paper's settings for CIFAR-10.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hpcfl.communication.message import wrap_entries
from hpcfl.errors import UserError
from hpcfl.methods.base import (
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Layers,
    Layout,
    Message,
    Mixture,
    Overlay,
    Sent,
    Setup,
    State,
    parts,
)
from hpcfl.rows import mixing

FLOOR = 1e-12  # added under square roots, because their gradient at 0 is not a number
# Minimal number of uploads per class for which class models are computed. Mixing class
# models takes about four times as long as a product of the same size
# (``mixing.combine``), so the product is faster for fewer uploads.
MANY = 4


def estimate_from_norms(head: Tensor) -> Tensor:
    """Estimate the class distribution π̂ from an output layer as the norms of its rows
    divided by their sum.

    Args:
        head: Output weights without bias, [..., K, d].

    Returns:
        π̂ [..., K]; 1/K if all weights are zero.
    """
    squares = head.square().sum(dim=-1)
    norms = (squares + FLOOR).sqrt()
    return norms / norms.sum(dim=-1, keepdim=True)


def compute_true_distribution(counts: Tensor) -> Tensor:
    """Return π [n, K] for the numbers of training samples per class ``counts`` [n, K];
    uniform for a client without samples.
    """
    total = counts.sum(dim=1, keepdim=True)
    shares = counts / total.clamp(min=1)
    return torch.where(total > 0, shares, 1 / counts.shape[1])


def make_even_distributions(clients: int, setup: Setup) -> Tensor:
    """Return π̂ [clients, K] with equal shares, float64."""
    return torch.full((clients, setup.classes), 1 / setup.classes).double()


def compute_class_weights(distributions: Tensor, weights: Tensor) -> Tensor:
    """Compute the share q_lj of each client l in class model j.

    Args:
        distributions: The clients' π̂ [n, K].
        weights: The clients' p [n].

    Returns:
        Q [K, n], float64. The row of a class without any samples is zero.
    """
    mass = weights[:, None] * distributions
    total = mass.sum(dim=0, keepdim=True)
    shares = mass / total.clamp(min=1e-300)
    return torch.where(total > 0, shares, 0).T


def compute_factors(
    distributions: Tensor, shares: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the two factors of the matrix A = Π·Q that mixes uploads for receivers.

    A receiver's π̂ is restricted to the classes that at least one client holds. For any
    other class, the average with the weights p replaces the class model. A receiver
    that has only such classes receives this average.

    Args:
        distributions: The receivers' π̂ [m, K].
        shares: The matrix Q [K, n] of the uploads.
        weights: The weights p [n] of the uploads.

    Returns:
        Π [m, K] and Q [K, n], float64.
    """
    held = shares.sum(dim=1) > 0
    of_held = torch.where(held, distributions, 0)
    total = of_held.sum(dim=1, keepdim=True)
    among_held = of_held / total.clamp(min=1e-300)
    mixes = torch.where(total > 0, among_held, distributions)
    class_shares = torch.where(held[:, None], shares, weights)
    return mixes, class_shares


def compute_class_models(server: State) -> Tensor:
    """Compute the K class models ``[K, P]`` from the server's state: G = Q·W in the
    class-wise columns, FedAvg's mean in the other columns.
    """
    classwise = mixing.mix(server["shares"], server["uploads"])
    lower = server["model"][: len(server["model"]) - classwise.shape[1]]
    return torch.cat([lower.expand(len(classwise), -1), classwise], dim=1)


@dataclass(frozen=True)
class ClassWise(Overlay):
    """Class-wise aggregation of the last P_cw columns of a model.

    The overlay replaces the ``model`` in the method's message by each client's mix, and
    adds the class-wise columns to the uploaded ``model``.

    Server, in addition to FedAvg's mean ``model`` [P]: ``uploads`` [n, P_cw],
    ``weights`` p [n] and ``shares`` Q [K, n] of the n clients of the last cohort;
    ``distributions`` [M, K], the last π̂ of each client.

    Attributes:
        distribution: "true" for the true class distribution, "norm" or "wdr" for the
            estimate from the output layer; "wdr" also adds ``compute_penalty`` to the loss.
        layers: The layers that are aggregated by class.
        strength: The strength of the regulariser.
    """

    distribution: Literal["true", "norm", "wdr"] = "wdr"
    layers: Layers = "output"
    strength: float = 5.0  # λ/2 for the reported λ = 10
    varying = ("weights", "shares", "uploads")

    def server_state(self, setup: Setup) -> State:
        classwise = setup.initial()[None, setup.layout.columns(self.layers)]
        return {
            "uploads": classwise.clone(),
            "weights": torch.ones(1).double(),
            "shares": torch.ones(setup.classes, 1).double(),
            "distributions": make_even_distributions(setup.clients, setup),
        }

    def send(self, server: State, audience: Audience, message: Message) -> Message:
        """Replace the model by the clients' mixes. Newcomers receive an even mix, like
        all clients before their first round.
        """
        if audience.are_newcomers:
            distributions = make_even_distributions(len(audience.ids), audience.setup)
        else:
            distributions = server["distributions"][audience.ids]
        others = {name: value for name, value in message.items() if name != "model"}
        return {**others, **self.mix_class_models(server, distributions)}

    def mix_class_models(self, server: State, distributions: Tensor) -> Message:
        """Return the clients' mixes of class models as a message.

        Args:
            server: The server's state.
            distributions: The clients' class distributions π̂ [n, K].

        Returns:
            The mixed columns ``classwise``, and ``lower``, the other columns, if not
            empty.
        """
        mixes, shares = compute_factors(
            distributions, server["shares"], server["weights"]
        )
        uploads = server["uploads"]
        message: dict[str, Tensor | Mixture] = {}
        if len(uploads) > MANY * len(shares):
            models = mixing.mix(shares, uploads, torch.float64)
            message["classwise"] = Mixture(models, mixes, uploads.dtype)
        else:
            message["classwise"] = mixing.mix(mixes @ shares, uploads)
        lower = server["model"][: len(server["model"]) - uploads.shape[1]]
        if len(lower):
            message["lower"] = lower
        return message

    def receive(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Join the received columns to the ``model`` of each client, [n, P]."""
        others = dict(inbox)
        model: Tensor = others.pop("classwise")
        if "lower" in others:
            lower = others.pop("lower").expand(len(model), -1)
            model = torch.cat([lower, model], dim=1)
        return {**others, "model": model}

    def loss_variables(self, fleet: Fleet) -> State:
        """Return the variable ``distribution`` for ``compute_penalty``: the true π [n, K]."""
        distribution = compute_true_distribution(fleet.counts).float()
        return {"distribution": distribution.to(fleet.resources.device)}

    def compute_penalty(self, model: nn.Module, lane: Any) -> Tensor | None:
        """Return the regulariser strength·‖π − π̂(w)‖₂ of one client, which makes the
        norms of the output layer's rows follow the true class distribution π.

        Args:
            model: The client's module.
            lane: The client's lane, with ``lane.distribution`` π [K].

        Returns:
            A scalar; None without the regulariser or without ``lane.distribution``.
        """
        if self.distribution != "wdr" or not self.strength:
            return None
        if not hasattr(lane, "distribution"):
            return None
        estimate = estimate_from_norms(parts(model).head.weight)
        squares = (lane.distribution - estimate).square()
        distance: Tensor = (squares.sum() + FLOOR).sqrt()
        return self.strength * distance

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        """Add the class-wise columns of the uploaded models to the message; record the
        distance of their estimates π̂ from π.
        """
        if "model" not in message:
            raise UserError(
                "method.aggregation = 'class-wise': the clients' message has no 'model'; "
                "leave the key out"
            )
        models = wrap_entries(message)["model"].tensor
        truth = compute_true_distribution(fleet.counts)
        estimates = self.estimate_distributions(fleet.layout, fleet.counts, models)
        fleet.record("distribution_distance", (estimates - truth).norm(dim=1))
        start = fleet.layout.columns(self.layers).start
        # These columns are part of the model, whose floats are already counted.
        added = {"classwise": Sent(models[:, start:], floats=0)}
        if self.distribution == "true":
            added["distribution"] = Sent(truth.float())
        return {**message, **added}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State:
        others = dict(uplink)
        uploads = others.pop("classwise")
        if "distribution" in others:
            estimates = others.pop("distribution").double()
        else:
            estimates = self.estimate_distributions(
                cohort.layout, cohort.counts, uploads
            )
        server["weights"] = cohort.weights
        server["shares"] = compute_class_weights(estimates, cohort.weights)
        server["uploads"] = uploads
        ids = torch.from_numpy(cohort.ids)
        server["distributions"] = server["distributions"].index_copy(0, ids, estimates)
        return others

    def estimate_distributions(
        self, layout: Layout, counts: Tensor, models: Tensor
    ) -> Tensor:
        """Estimate class distributions from the output layers of models.

        Args:
            layout: The layout of a row, with the columns of the output layer.
            counts: Training samples [n, K]; only the shape is used.
            models: Rows [n, P], or only their last columns, which must include the
                output layer.

        Returns:
            π̂ [n, K], float64 on the CPU.
        """
        columns = layout.columns("head.weight")
        missing = layout.width - models.shape[1]
        head = models[:, columns.start - missing : columns.stop - missing]
        weights = head.double().cpu().view(*counts.shape, -1)
        return estimate_from_norms(weights)
