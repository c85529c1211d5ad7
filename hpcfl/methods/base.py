"""The contract of a method: a federated learning algorithm as functions over explicit
state.

A method is a frozen pydantic section: its fields are its own keys in ``[method]``,
typed, constrained and documented. It touches no MPI, no device, no data loader, no
random number generator and no loop over mini-batches, so that the same file runs in one
process and on many ranks. All its state lies in two dictionaries of tensors, ``server``
on rank 0 and ``fleet.state`` with a first dimension for clients; these two are what a
checkpoint holds.

A complete method, whose server follows the mean of the clients' models by half::

    # halfway.py
    import torch

    import hpcfl
    from hpcfl.methods.base import Mean, Method


    class Halfway(Method):
        def server_state(self, setup):  # before round 1
            return {"model": setup.initial()}

        def send(self, server, audience):  # what comes down
            return {"model": server["model"]}

        def start(self, fleet, inbox):  # what clients start from
            return inbox["model"]

        def update(self, fleet, inbox):  # a round of all clients of a rank
            start = self.start(fleet, inbox)
            self.score(fleet, inbox, start)
            trained = fleet.train(start)
            self.score(fleet, inbox, trained, trained=True)
            return {"model": Mean(trained, self.shares(fleet))}

        def aggregate(self, server, cohort, uplink):  # what came up
            server["model"] = torch.lerp(server["model"], uplink["model"], 0.5)


    if __name__ == "__main__":
        experiment = {
            "rounds": 3,
            "training": {"lr": 0.1, "epochs": 5},
            "method": {"name": "halfway:Halfway"},
        }
        run = hpcfl.run(experiment, out="halfway")
        for accuracy in run.accuracy("pre"):
            print(f"{accuracy:.2f}")
        # 0.09
        # 0.21
        # 0.32
        # 0.45

The last number is of the model that the third round made. Where clients start from the
server's model ``ServerModel`` has ``update`` already, in smaller hooks.

Each method's docstring says what lies in both dictionaries ("Server: … Client: …") and
how many floats travel to and from one client in a round ("Down …, up …"). Symbols: M
clients in total, n in one call, S the cohort; K classes; P parameters, P_b of the body
and P_h of the head; d the width of the features that enter the head; w the server's
model, w_i a client's; F_i its mean loss, N_i its number of training samples, p_i its
weight in averages over S.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as functional
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from hpcfl.clients import Fleet, StepContext, evaluate_at
from hpcfl.clients.losses import CROSS_ENTROPY, Batch, Loss
from hpcfl.clients.setup import Setup
from hpcfl.communication.message import Field as Sent
from hpcfl.communication.message import Inbox, Mean, Message, Mixture, Pool
from hpcfl.errors import UserError
from hpcfl.experiment.sections import MethodSection
from hpcfl.methods._participants import Audience, ClientModel, Cohort
from hpcfl.methods._score_columns import score_models
from hpcfl.methods.overlays.base import Overlay, OwnOverlay
from hpcfl.models import parts
from hpcfl.rows.declared import NamedTensors
from hpcfl.rows.layout import Group, Layout

# The names that a method's file imports from here.
__all__ = [
    "CROSS_ENTROPY",
    "Audience",
    "Batch",
    "ClientModel",
    "Cohort",
    "Fleet",
    "Group",
    "Inbox",
    "Layers",
    "Layout",
    "Loss",
    "Mean",
    "Message",
    "Method",
    "Mixture",
    "Overlay",
    "OwnOverlay",
    "Pool",
    "Sent",
    "Setup",
    "State",
    "StepContext",
    "evaluate_at",
    "head_of",
    "parts",
    "search",
]

State = dict[str, Tensor]
# the upper layers that a method treats in its own way: all, the output layer, or the
# upper n
Layers = Literal["all", "output"] | PositiveInt


def search(values: Sequence[float], source: str) -> dict[str, Any]:
    """Return the values of a key that a tuning tries, as a part of its JSON schema:
    ``Field(…, json_schema_extra=search([0.1, 1.0], "Li et al., 2021"))``.

    Args:
        values: The values, in the order in which documents show them.
        source: The paper or code that tried them.
    """
    return {"search": list(values), "source": source}


def head_of(model: nn.Module, method: str, trained: bool = False) -> nn.Linear:
    """Return the output layer ``model.head``, an ``nn.Linear`` whose input is
    ``model.features(x)``.

    Args:
        model: One client's module.
        method: The method's name for an error.
        trained: Whether the method needs all of the output layer to be trained.

    Raises:
        UserError: A user's module lacks the head or the features, or freezes a part of
            the head that the method trains.
    """
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear) or not hasattr(model, "features"):
        raise UserError(
            f"{method} needs a model whose output layer is the nn.Linear 'head', fed by its "
            f"method 'features(x)'; {type(model).__name__} has none"
        )
    if trained and not all(parameter.requires_grad for parameter in head.parameters()):
        raise UserError(
            f"{method} needs a model whose output layer 'head' is trained whole; "
            f"{type(model).__name__} freezes some of it (requires_grad = False)"
        )
    return head


class Method(MethodSection, ABC):
    """A federated learning method. Subclass it in one file, with ``plugin =
    YourMethod`` at its end.

    Every method has four hooks: ``send``, ``start``, ``update`` and ``aggregate``. A
    ``ServerModel`` has all four already, in smaller parts. The other hooks are optional.

    Attributes:
        primary: the column in which the method's result is read.
        reference: the paper, for the table of methods.
        family: the kind of method it is, for the same table.
        models: those of a client's models that have batch-norm buffers of their own;
            "model" is the one that local training starts from.
        needs_rounds: what a round does depends on how many there will be, so a finished
            run cannot be prolonged.
        no_newcomers: why a client that never took part gets no model from this method;
            "" where it does.
        only_synchronous: why the server cannot take a step of uploads that started from
            different models of its own (``[time]``); "" where it can, as far as its
            messages show.
        uploads_rows: why clients upload models of their own in later rounds and means in
            the first; "" where the entries of all rounds are alike. Changes of updates
            need means in every round.
        short: keys with which a few rounds are quick and still show all that the method
            does, for the tests that every method has to pass.
        keeps: keys of options, ``ala`` and ``aggregation``, that work with the hooks of
            this class. A class that overrides hooks which an option needs (see
            ``options``) declares them, or the keys are refused.
        varying: names in ``server`` that ``aggregate`` may add, or give another shape.
        private_variables: names of variables of ``fleet.train`` that a loss may read with
            sample-level privacy, because they are computed from what the client received
            or trained under it. The loss of such a method reads no other data.
        trains: groups of columns that a model may not freeze altogether, and what would
            come of it, which ends the sentence "all of it is frozen, so …".
        client_models: names of models [P] in the private state, which begin as the
            initial one.
        needs_head: "any" for a method that reads the model's ``head`` and ``features``,
            "trained" if all of the head must be trained too.
    """

    weights: Literal["samples", "uniform"] = Field(
        "samples", description="weights of the clients in averages"
    )

    primary: ClassVar[str] = "pre"
    reference: ClassVar[str] = ""
    family: ClassVar[str] = ""
    models: ClassVar[tuple[str, ...]] = ("model",)
    no_newcomers: ClassVar[str] = ""
    only_synchronous: ClassVar[str] = ""
    uploads_rows: ClassVar[str] = ""
    short: ClassVar[Mapping[str, Any]] = {}
    keeps: ClassVar[tuple[str, ...]] = ()
    varying: ClassVar[tuple[str, ...]] = ()
    private_variables: ClassVar[tuple[str, ...]] = ()
    trains: ClassVar[Mapping[Group, str]] = {}
    client_models: ClassVar[tuple[str, ...]] = ()
    needs_head: ClassVar[Literal["", "any", "trained"]] = ""

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise TypeError: checkpoints do not contain attributes of a method, and ranks
        do not share them.
        """
        raise TypeError(
            f"self.{name} = …: a method keeps nothing in itself; what changes lies in "
            "server_state or client_state"
        )

    # The four hooks that every method has

    @abstractmethod
    def send(self, server: State, audience: Audience) -> Message:
        """Return the message to the audience. Runs on rank 0; must not change ``server``.

        Returns:
            Tensors by name: ``[width]`` for all clients, or rows ``[n, width]`` in the
            order of ``audience.ids``. A ``Pool`` holds models of which each client picks
            some; each client receives its own weighted sum of a ``Mixture``.
        """

    @abstractmethod
    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the rows that local training starts from, ``[n, P]``, or ``[P]`` if they
        are the same for all.

        The engine calls it for observers too, to score their start; their state is
        forgotten.
        """

    @abstractmethod
    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        """Play the clients' side of a round: score, train, score.

        Args:
            fleet: The clients of the cohort on this rank.
            inbox: The message of ``send`` by name: [width], or the clients' rows [n,
                width].

        Returns:
            The message to the server: a row for each client, ``[n, width]``, or a
            ``Mean`` if the server needs only the mean.
        """

    @abstractmethod
    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        """Assign new tensors in ``server``, made of ``uplink``; change none in place.
        Runs on rank 0.

        The old ones must not change: in a single process clients may have kept what
        they received.

        Args:
            server: the state as the last round left it.
            cohort: the clients that did not diverge.
            uplink: what they sent, rows [n, width] in the order of ``cohort.ids``; of a
                ``Mean`` [width] or [k, width].
        """

    # Optional: the state before round 1

    def server_state(self, setup: Setup) -> State:
        """Return the server's state before round 1, tensors by name.

        ``aggregate`` may assign only these names, and a tensor keeps its type and shape.
        Tensors without elements and those that ``varying`` names may change their
        shape. A method with one model for all calls it ``model``.
        """
        return {}

    def client_state(self, setup: Setup) -> State:
        """Return the private state of ONE client before its first round, tensors by name.

        In ``fleet.state`` they have a further first dimension, the clients.
        """
        return {name: setup.initial() for name in self.client_models}

    # Optional: the loss, and the models that are scored

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """Return the loss of ONE client on one mini-batch.

        It may read its arguments and constants of the run, such as the method's keys. A
        number that changes must be a variable.

        Args:
            model: The client's module.
            batch: Its samples ``batch.x`` and labels ``batch.y``.
            lane: ``lane.NAME`` is the client's row of a variable of ``fleet.train``. A
                penalty goes through ``lane.regulariser(term)``, which returns it: the
                recorded ``data_loss`` is without it.

        Returns:
            A scalar.
        """
        return functional.cross_entropy(model(batch.x), batch.y)

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Return the inbox for the hooks below: the message, with values that are
        computed from it once a call.
        """
        return inbox

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        """Return THE model that each client would use now, which is scored as ``pre`` or
        ``post``.

        A method may train here: all state, buffers included, is restored afterwards,
        and a ``phase`` of its own keys the shuffles.

        Args:
            fleet: Clients of the cohort, or observers.
            inbox: The result of ``prepare``.
            rows: With ``trained`` the result of this round's local training, else the
                rows that training starts from, or would start from in an observer.
            trained: Whether the round's local training is done.
        """
        return ClientModel(rows)

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        """Return further models to score, by the name of their column; arguments as for
        ``client_model``.
        """
        return {}

    # Optional: after the last round

    def finish(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score clients after the last round, from one more ``send``; their state is
        forgotten.
        """
        self.observe(fleet, inbox)

    def send_to_newcomers(self, server: State, audience: Audience) -> Message:
        """Return the message to newcomers, clients that never took part; as ``send``.

        Their ids follow those of the others, so ``server`` and ``audience.setup`` hold
        nothing about them.
        """
        return self.send(server, audience)

    def init_newcomers(self, fleet: Fleet, inbox: Inbox) -> None:
        """Assign in ``fleet.state`` what newcomers take over from what came down,
        before they are scored and trained.

        With ``newcomers.epochs`` ``update`` then plays their only round, their round 1,
        without an upload; else ``observe`` runs. Their state is forgotten.
        """

    # Optional, and rarely needed

    def adapt(self, model: nn.Module) -> nn.Module:
        """Return the model of one client with the method's changes, such as further
        blocks.

        Raises UserError for a model without the head that ``needs_head`` asks for.
        """
        if self.needs_head:
            head_of(model, self.name, trained=self.needs_head != "any")
        return model

    def overlays(self) -> tuple[Overlay, ...]:
        """Return the overlays of its messages that the method's keys ask for, the
        innermost first.
        """
        return ()

    def validation_share(self) -> float:
        """Return the share of a client's training samples, in [0, 1), that is held out
        for validation: neither trained on nor counted.
        """
        return 0.0

    def notes(self, setup: Setup) -> list[str]:
        """Return lines for the user to read before the first round, such as one on a
        doubtful choice of keys.
        """
        return []

    def training_loss(self) -> Loss:
        """Return what ``fleet.train`` minimises by default: ``loss``, or the engine's
        cross-entropy where it equals that.
        """
        return CROSS_ENTROPY if type(self).loss is Method.loss else self.loss

    def server_models(self, server: State) -> State:
        """Return models [P] of the server that belong to no column, by name, such as
        "class 3" or "cluster 0".

        These models are saved but not evaluated.
        """
        return {}

    def found_clusters(self, server: State) -> Tensor | None:
        """Return each client's last cluster, int64 [M], −1 for none yet; None for a
        method without clusters.

        If an experiment defines groups of clients (``[[shift]]``), scored rounds record
        the agreement of groups and clusters.
        """
        return None

    # Helpers for hooks, which no method overrides

    def shares(self, fleet: Fleet) -> Tensor:
        """Return each client's weight in a ``Mean``, [n]: its samples, or 1 with
        ``weights = "uniform"``.
        """
        if self.weights == "uniform":
            return torch.ones_like(fleet.samples)
        return fleet.samples

    def prepare_inbox(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Return what ``prepare`` returns, in which a missing name is an error that lists
        the others.
        """
        named: Any = NamedTensors(self.prepare(fleet, inbox), "inbox")
        return cast(Inbox, named)

    def score(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool = False,
    ) -> None:
        """Score ``client_model`` as ``pre``, or as ``post`` if ``trained``, and
        ``other_models``; arguments as for ``client_model``.

        Nothing is done in a round that is not scored. Every method counts the same
        clients: in ``pre`` the whole audience, in ``post`` those that trained.
        """
        if not fleet.scoring.is_due or not (trained or fleet.scoring.scores_starts):
            return
        given = fleet, inbox, rows, trained
        before = fleet.results.sample_gradients.copy()
        with fleet.trial():
            own = {"post" if trained else "pre": self.client_model(*given)}
            score_models(fleet, own | self.other_models(*given), trained)
        taken = fleet.results.sample_gradients - before
        fleet.results.scoring_gradients += taken

    def observe(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score observers, the clients outside the cohort; what happens to their state
        is forgotten.
        """
        inbox = self.prepare_inbox(fleet, inbox)
        self.score(fleet, inbox, self.start(fleet, inbox))
