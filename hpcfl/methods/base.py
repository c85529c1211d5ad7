"""The contract of a method: a federated learning algorithm as functions over explicit state.

A method is a frozen pydantic section: its fields are its own keys in ``[method]``, typed, constrained and documented.
It touches no MPI, no device, no data loader, no random number generator and no loop over mini-batches. ``server`` is a
dictionary of tensors on rank 0 and ``fleet.state`` one of per-client tensors: together all state there is, and so the
checkpoint.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as functional
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hpcfl.communication.message import Inbox, Message
from hpcfl.errors import UserError
from hpcfl.experiment.sections import MethodSection
from hpcfl.fleet import Fleet
from hpcfl.fleet.kernels import Batch
from hpcfl.fleet.setup import Setup as Setup  # methods import it from here
from hpcfl.rows.layout import Layout

State = dict[str, Tensor]
Layers = Literal["all", "output"] | PositiveInt  # a suffix of the model: everything, the head, the upper n layers


def head_of(model: nn.Module, method: str) -> nn.Linear:
    """A model's output layer ``model.head``. Raises UserError where a user's module does not name it so."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear) or not hasattr(model, "features"):
        raise UserError(f"{method} needs a model whose output layer is the nn.Linear 'head', fed by its method "
                        f"'features(x)'; {type(model).__name__} has none")
    return head


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, or those whose messages arrived: ``ids`` [n] ascending, ``counts`` [n, classes].

    beat: to be called now and then in computations of many seconds, so that the server does not seem lost.
    """

    ids: np.ndarray
    counts: Tensor
    setup: Setup
    round: int
    uniform: bool = False
    beat: Callable[[], None] = lambda: None

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    def only(self, chosen: Tensor) -> "Cohort":
        """Those of the cohort where ``chosen``, bool [n]; their weights sum to one again."""
        return replace(self, ids=self.ids[chosen.numpy()], counts=self.counts[chosen])

    @property
    def weights(self) -> Tensor:
        """Weights of the average, float64 [n], summing to one: N_i/ΣN over the cohort, or 1/n if uniform."""
        sizes = torch.ones(len(self.ids)).double() if self.uniform else self.counts.sum(dim=1)
        return sizes / sizes.sum()


class Method(MethodSection, ABC):
    """A federated learning method. Subclass it in one file, with ``plugin = YourMethod`` at its end.

    primary: the score whose maximum over rounds is the method's result.
    reference, family: the paper, and the kind of method it is, for the table of methods.
    models: a client's models that have buffers of their own; "model" is the one that local training starts from.
    needs_rounds: what a round does depends on how many there will be, so a finished run cannot be prolonged.
    """

    weights: Literal["samples", "uniform"] = Field("samples", description="weights of the clients in averages")

    primary: ClassVar[str] = "pre"
    reference: ClassVar[str] = ""
    family: ClassVar[str] = ""
    models: ClassVar[tuple[str, ...]] = ("model",)

    def validation_share(self) -> float:
        """The share of a client's training samples that is held out for validation: not trained on, not counted."""
        return 0.0

    def notes(self, setup: Setup) -> list[str]:
        """Lines that a user should read before the first round, such as a doubtful choice of keys."""
        return []

    def adapt(self, model: nn.Module) -> nn.Module:
        """The model of one client, changed as the method needs (a head of its own, further blocks)."""
        return model

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """The objective of ONE client on one mini-batch; ``lane`` holds the variables given to ``fleet.train``."""
        return functional.cross_entropy(model(batch.x), batch.y)

    def objective(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """What local training minimises unless told otherwise: the loss, and what an option adds to it."""
        return self.loss(model, batch, lane)

    def server_state(self, setup: Setup) -> State:
        """The server's state before round 1. Tensors may change their shape later."""
        return {}

    def client_state(self, setup: Setup) -> State:
        """The private state of ONE client before its first round."""
        return {}

    @abstractmethod
    def send(self, server: State, cohort: Cohort) -> Message:
        """What goes to the cohort, rows in the order of ``cohort.ids``. Runs on rank 0; must not change ``server``."""

    @abstractmethod
    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        """The clients' side of a round: score, train, and return what goes up, ``[n, width]`` each."""

    @abstractmethod
    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        """Assign new values in ``server`` from what came up. Runs on rank 0."""

    def observe(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score clients that do not take part in this round; what happens to their state is forgotten."""

    def finish(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score all clients after the last round, from one more ``send``; state is forgotten."""
        self.observe(fleet, inbox)
