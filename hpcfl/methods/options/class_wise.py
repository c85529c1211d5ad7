"""Class-wise aggregation: one average for each class, and for each client its mix of
these class models.

Lee & Choi, "Class-wise federated averaging" (arXiv 2406.07800 v1; ICCV 2025). With π̂_i
[K] the estimated class distribution of client i and p_l the weight of client l, class
model j is G_j = Σ_l q_lj w_l, q_lj = p_l π̂_lj / Σ_m p_m π̂_mj, and client i starts
from Σ_j π̂_ij G_j; in matrices, from Π·G with G = Q·W. After a cohort of many more
clients than classes G is made and sent, in float64, so that a start is rounded once.
After a smaller cohort the starts are sent, (Π·Q)·W, for which no class model is made
(``class_models`` makes them to be looked at). cwFedAvg does this; other methods whose
server averages whole models by ``aggregation = "class-wise"``, which wraps them in
``ClassWiseAggregation``, with the paper's settings for CIFAR-10.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hpcfl.clients import Fleet
from hpcfl.clients.losses import Batch, reads_features
from hpcfl.communication.message import Field as Sent
from hpcfl.communication.message import Inbox, Message, Mixture
from hpcfl.methods.base import Audience, Cohort, Layers, Method, Setup, State, head_of
from hpcfl.methods.fedavg import FedAvg
from hpcfl.models import parts
from hpcfl.rows import mixing
from hpcfl.rows.layout import Layout

FLOOR = 1e-12  # under square roots, whose gradient at 0 is not a number
# Class models are made of more uploads than this for each of them. Mixing them takes
# some four times as long as a product of as many numbers (``mixing.combine``), so of
# fewer uploads the product is faster.
MANY = 4


def norm_distribution(head: Tensor) -> Tensor:
    """The class distribution π̂ that an output layer shows: the norms of its rows,
    divided by their sum.

    Args:
        head: output weights without bias, [..., K, d].

    Returns:
        π̂ [..., K]; 1/K if all weights are zero.
    """
    norms = (head.square().sum(dim=-1) + FLOOR).sqrt()
    return norms / norms.sum(dim=-1, keepdim=True)


def true_distribution(counts: Tensor) -> Tensor:
    """π [n, K] of training counts ``[n, K]``; uniform for a client without samples."""
    total = counts.sum(dim=1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1), 1 / counts.shape[1])


def class_weights(distributions: Tensor, weights: Tensor) -> Tensor:
    """The share q_lj of each client l in class model j.

    Args:
        distributions: the clients' π̂ [n, K].
        weights: the clients' p [n].

    Returns:
        Q [K, n], float64. The row of a class that nobody holds is zero.
    """
    mass = weights[:, None] * distributions
    total = mass.sum(dim=0, keepdim=True)
    return torch.where(total > 0, mass / total.clamp(min=1e-300), 0).T


def factors(
    distributions: Tensor, shares: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The two factors of the matrix A = Π·Q that mixes uploads for receivers.

    A receiver's π̂ counts over the classes that somebody holds. The model of any other
    class is the average by p, which is what a receiver gets that has none but such
    classes.

    Args:
        distributions: the receivers' π̂ [m, K].
        shares: Q [K, n] of the uploads.
        weights: p [n] of the uploads.

    Returns:
        Π [m, K] and Q [K, n], float64.
    """
    held = shares.sum(dim=1) > 0
    of_held = torch.where(held, distributions, 0)
    total = of_held.sum(dim=1, keepdim=True)
    mixes = torch.where(total > 0, of_held / total.clamp(min=1e-300), distributions)
    class_shares = torch.where(held[:, None], shares, weights)
    return mixes, class_shares


def class_models(server: State) -> Tensor:
    """The K class models ``[K, P]``, G = Q·W in the class-wise columns, from a server's
    state.
    """
    classwise = mixing.mix(server["shares"], server["uploads"])
    lower = server["model"][: len(server["model"]) - classwise.shape[1]]
    return torch.cat([lower.expand(len(classwise), -1), classwise], dim=1)


@dataclass(frozen=True)
class ClassWise:
    """Class-wise aggregation with the keys of ``CwFedAvg``, of the last P_cw columns of
    a model.

    Server, beside FedAvg's mean ``model`` [P]: of the last cohort's n clients
    ``uploads`` [n, P_cw], ``weights`` p [n] and ``shares`` Q [K, n]; ``distributions``
    [M, K], each client's last π̂.
    """

    distribution: Literal["true", "norm", "wdr"] = "wdr"
    layers: Layers = "output"
    strength: float = 5.0  # of the regulariser: λ/2 for the reported λ = 10

    def server_state(self, setup: Setup, model: Tensor) -> State:
        classwise = model[None, setup.layout.columns(self.layers)]
        shape = setup.clients, setup.classes
        even = torch.full(shape, 1 / setup.classes).double()
        return {
            "uploads": classwise.clone(),
            "weights": torch.ones(1).double(),
            "shares": torch.ones(setup.classes, 1).double(),
            "distributions": even,
        }

    def send(self, server: State, distributions: Tensor) -> Message:
        """The message to clients whose class distributions π̂ are these, [n, K]."""
        mixes, shares = factors(distributions, server["shares"], server["weights"])
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

    def received(self, inbox: Inbox) -> Tensor:
        """The models ``[n, P]`` that came down, each client's own."""
        upper: Tensor = inbox["classwise"]
        if "lower" not in inbox:
            return upper
        lower = inbox["lower"].expand(len(upper), -1)
        return torch.cat([lower, upper], dim=1)

    def penalty(self, model: nn.Module, lane: Any) -> Tensor | None:
        """The regulariser strength·‖π − π̂(w)‖₂ of one client, or None where there is
        none, as in a training without ``lane.distribution`` π [K].

        It makes the norms of the output layer's rows follow the true class distribution
        π.
        """
        if self.distribution != "wdr" or not self.strength:
            return None
        if not hasattr(lane, "distribution"):
            return None
        difference = lane.distribution - norm_distribution(parts(model).head.weight)
        distance: Tensor = (difference.square().sum() + FLOOR).sqrt()
        return self.strength * distance

    def uplink(self, fleet: Fleet, models: Tensor) -> Message:
        """What goes up beside ``models`` [n, P]; records how far their estimates π̂ are
        from π.
        """
        truth = true_distribution(fleet.counts)
        estimates = self.estimates(fleet.layout, fleet.counts, models)
        fleet.record("distribution_distance", (estimates - truth).norm(dim=1))
        start = fleet.layout.columns(self.layers).start
        # They are a part of the model, which is counted elsewhere.
        message: dict[str, Tensor | Sent] = {
            "classwise": Sent(models[:, start:], floats=0)
        }
        if self.distribution == "true":
            message["distribution"] = truth.float()
        return message

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        if "distribution" in uplink:
            estimates = uplink["distribution"].double()
        else:
            models = uplink["classwise"]
            estimates = self.estimates(cohort.layout, cohort.counts, models)
        server["weights"] = cohort.weights
        server["shares"] = class_weights(estimates, cohort.weights)
        server["uploads"] = uplink["classwise"]
        server["distributions"] = server["distributions"].index_copy(
            0, torch.from_numpy(cohort.ids), estimates
        )

    def estimates(self, layout: Layout, counts: Tensor, models: Tensor) -> Tensor:
        """The class distributions that models' output layers show.

        Args:
            layout: where the output layer lies in a row.
            counts: training samples [n, K], of which only the shape counts.
            models: rows [n, P], or their last columns, from the output layer's or
                earlier ones on.

        Returns:
            π̂ [n, K], float64 on the CPU.
        """
        columns = layout.columns("head.weight")
        missing = layout.width - models.shape[1]
        head = models[:, columns.start - missing : columns.stop - missing]
        weights = head.double().cpu().view(*counts.shape, -1)
        return norm_distribution(weights)


class AggregationKey(Method):
    """The key by which a method is wrapped."""

    aggregation: Literal["average", "class-wise"] = Field(
        "average",
        description="class-wise: clients get cwFedAvg's mix (output layer, WDR with λ = 10), not the mean",
    )


class ClassWiseAggregation(AggregationKey, FedAvg):
    """A method whose server averages whole models, and averages them by class as well.

    Clients start from their mix of the class models instead of the mean.
    """

    varying: ClassVar[tuple[str, ...]] = ("weights", "shares", "uploads")

    def class_wise(self) -> ClassWise:
        """How models are aggregated by class."""
        return ClassWise()

    def adapt(self, model: nn.Module) -> nn.Module:
        head_of(model, self.name, trained=True)
        return super().adapt(model)

    @reads_features("loss")
    def objective(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        loss = super().objective(model, batch, lane)
        penalty = self.class_wise().penalty(model, lane)
        return loss if penalty is None else loss + lane.regulariser(penalty)

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        """Adds the true class ``distribution`` π [n, K], which the regulariser reads."""
        distribution = true_distribution(fleet.counts).float()
        return {
            **super().loss_variables(fleet, inbox),
            "distribution": distribution.to(fleet.resources.device),
        }

    def server_state(self, setup: Setup) -> State:
        state = super().server_state(setup)
        return {**state, **self.class_wise().server_state(setup, state["model"])}

    def send(self, server: State, audience: Audience) -> Message:
        distributions = server["distributions"][audience.ids]
        return self.class_wise().send(server, distributions)

    def send_to_newcomers(self, server: State, audience: Audience) -> Message:
        """To newcomers an even mix, as everybody's before their first round."""
        clients, classes = len(audience.ids), audience.setup.classes
        even = torch.full((clients, classes), 1 / classes).double()
        return self.class_wise().send(server, even)

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return self.class_wise().received(inbox)

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        message = super().upload(fleet, inbox, trained)
        return {**message, **self.class_wise().uplink(fleet, trained)}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        super().aggregate(server, cohort, uplink)
        self.class_wise().aggregate(server, cohort, uplink)

    def server_models(self, server: State) -> State:
        """The class models."""
        models = enumerate(class_models(server))
        return {f"class {label}": model for label, model in models}
