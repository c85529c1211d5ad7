"""The contract of a method: a federated learning algorithm as functions over explicit state.

A method is a frozen pydantic section: its fields are its own keys in ``[method]``, typed, constrained
and documented. It touches no MPI, no device, no data loader, no random number generator and no loop over
mini-batches. ``server`` is a dictionary of tensors on rank 0 and ``fleet.state`` one of per-client tensors:
together all state there is, and so the checkpoint.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

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
from hpcfl.methods._client_model import ClientModel as ClientModel
from hpcfl.methods._clients import Audience as Audience
from hpcfl.methods._clients import Cohort as Cohort

State = dict[str, Tensor]
# a suffix of the model: everything, the head, the upper n layers
Layers = Literal["all", "output"] | PositiveInt


def head_of(model: nn.Module, method: str) -> nn.Linear:
    """A model's output layer ``model.head``. Raises UserError where a user's module does not name it so."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear) or not hasattr(model, "features"):
        raise UserError(f"{method} needs a model whose output layer is the nn.Linear 'head', fed by its "
                        f"method 'features(x)'; {type(model).__name__} has none")
    return head


class Method(MethodSection, ABC):
    """A federated learning method. Subclass it in one file, with ``plugin = YourMethod`` at its end.

    primary: the score whose maximum over rounds is the method's result.
    reference, family: the paper, and the kind of method it is, for the table of methods.
    models: a client's models that have buffers of their own; "model" is the one that local training
    starts from.
    needs_rounds: what a round does depends on how many there will be, so a finished run cannot be prolonged.
    """

    weights: Literal["samples", "uniform"] = Field("samples",
                                                   description="weights of the clients in averages")

    primary: ClassVar[str] = "pre"
    reference: ClassVar[str] = ""
    family: ClassVar[str] = ""
    models: ClassVar[tuple[str, ...]] = ("model",)

    def validation_share(self) -> float:
        """The share of a client's training samples that is held out for validation: not trained
        on, not counted."""
        return 0.0

    def notes(self, setup: Setup) -> list[str]:
        """Lines that a user should read before the first round, such as a doubtful choice of keys."""
        return []

    def adapt(self, model: nn.Module) -> nn.Module:
        """The model of one client, changed as the method needs (a head of its own, further blocks)."""
        return model

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """The objective of ONE client on one mini-batch; ``lane`` holds the variables given to
        ``fleet.train``.

        It may read its arguments and what does not change in a run, such as the method's keys: steps that run
        often are recorded, with the Python numbers of the call in which that happens. What changes is a
        variable of its own. Where a replay turns out not to give what the loss gives, a RunFailure says so
        (see ``runtime.replay``).
        """
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
    def send(self, server: State, audience: Audience) -> Message:
        """What goes to the audience, rows in the order of ``audience.ids``.

        Runs on rank 0; must not change ``server``.
        """

    def opened(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """What a client reads in all that follows: what arrived, with what it makes of that once a call."""
        return inbox

    @abstractmethod
    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The rows that local training starts from, ``[n, P]``, or ``[P]`` if they are the same for all.

        For clients outside the cohort as well; what happens to their state is forgotten.
        """

    def client_model(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool) -> ClientModel:
        """THE model that each client would use now.

        rows: with ``trained`` what local training of this round came to, else what it starts from, or would
        start from in a client that does not take part. May train for a while: buffers move back, shuffles are
        keyed by the phase.
        """
        return ClientModel(rows)

    def other_models(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool) -> dict[str, ClientModel]:
        """Further models that are scored, by the name of their column; arguments as for ``client_model``."""
        return {}

    def score(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool = False) -> None:
        """Score the clients' models: ``pre``, before local training, or ``post``, after it; and
        what else there is.

        Who is counted in a column is the same for every method: ``pre`` everyone who is asked, ``post``
        those who trained.
        """
        if not fleet.scored:
            return
        with fleet.trial():
            models = {"post" if trained else "pre": self.client_model(fleet, inbox, rows, trained),
                      **self.other_models(fleet, inbox, rows, trained)}
            while models:
                one = next(iter(models.values()))
                columns = [column for column, other in models.items() if other.same(one)]
                fleet.score(columns, one.rows, one.predict, one.model, one.variables)
                models = {column: other for column, other in models.items() if column not in columns}

    def shares(self, fleet: Fleet) -> Tensor:
        """How much each client counts in a ``Mean``, [n]: its samples, or all the same; see ``weights``."""
        return torch.ones_like(fleet.samples) if self.weights == "uniform" else fleet.samples

    @abstractmethod
    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        """The clients' side of a round: score, train, score, and return what goes up: a row for each client,
        ``[n, width]``, or a ``Mean`` where the server needs no more than that."""

    @abstractmethod
    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        """Assign new values in ``server`` from what came up. Runs on rank 0.

        cohort: the clients whose numbers are finite. uplink: rows [n, width] in the order of ``cohort.ids``,
        of a ``Mean`` [width] or [k, width].
        """

    def observe(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score clients that do not take part in this round; what happens to their state is forgotten."""
        inbox = self.opened(fleet, inbox)
        self.score(fleet, inbox, self.start(fleet, inbox))

    def finish(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score all clients after the last round, from one more ``send``; state is forgotten."""
        self.observe(fleet, inbox)
