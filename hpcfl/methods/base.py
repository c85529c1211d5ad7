"""Base class of methods: a federated learning algorithm as functions over explicit
state.

A method is a frozen pydantic section. Its fields are the keys of ``[method]``, with
types, limits and descriptions. The engine handles MPI, devices, data loading, random
numbers and the loop over mini-batches, so the same file runs in one process and on many
ranks. A method's state is two dictionaries of tensors: ``server`` on rank 0, and
``fleet.state``, whose tensors have the clients as first dimension. A checkpoint
contains both.

A complete method, whose server moves halfway to the mean of the clients' models::

    # halfway.py
    import torch

    import hpcfl
    from hpcfl.methods.base import Mean, Method


    class Halfway(Method):
        def server_state(self, setup):  # before round 1
            return {"model": setup.initial()}

        def send(self, server, audience):  # the message to the clients
            return {"model": server["model"]}

        def start(self, fleet, inbox):  # the models before local training
            return inbox["model"]

        def update(self, fleet, inbox):  # one round of a rank's clients
            start = self.start(fleet, inbox)
            self.score(fleet, inbox, start)
            trained = fleet.train(start)
            self.score(fleet, inbox, trained, trained=True)
            return {"model": Mean(trained, self.shares(fleet))}

        def aggregate(self, server, cohort, uplink):  # the server's step
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

The last number is the accuracy of the model after the third round. ``ServerModel``
implements ``update`` for methods whose clients start from the server's model, and
splits it into smaller hooks.

Each method's docstring lists the contents of both dictionaries ("Server: … Client: …")
and the number of floats sent to and from one client in a round ("Down …, up …").

Symbols: M clients in total, n clients in one call, S the cohort; K classes; P
parameters of a model, P_b of its body and P_h of its head; d the width of the head's
input; w the server's model, w_i the model of client i; F_i its mean loss, N_i its
number of training samples, p_i its weight in averages over S.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

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
from hpcfl.rows.declared import describe_form, refuse_changes
from hpcfl.rows.layout import Group, Layout

# The names that a method's file imports from here.
__all__ = [
    "CROSS_ENTROPY",
    "UNWEIGHTED",
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
# Entry of ``readers`` of a method that averages no clients: with no name it reads
# ``weights``.
UNWEIGHTED: dict[str, Any] = {"name": {None: ("weights",)}}
# Keys of ``[training]`` that ``StepContext.descend`` ignores.
PLAIN_STEPS = "optimizer", "momentum", "weight_decay", "clip"
# The upper layers that a method treats separately: all, the output layer, or the
# upper n.
Layers = Literal["all", "output"] | PositiveInt


def search(values: Sequence[float], source: str) -> dict[str, Any]:
    """Return the search range of a key for ``hpcfl tune``, as an entry of its JSON
    schema: ``Field(…, json_schema_extra=search([0.1, 1.0], "Li et al., 2021"))``.

    Args:
        values: The values to try, in the order of the documents.
        source: The paper or code that tried them.
    """
    return {"search": list(values), "source": source}


def head_of(model: nn.Module, method: str, trained: bool = False) -> nn.Linear:
    """Return the output layer ``model.head``, an ``nn.Linear`` whose input is
    ``model.features(x)``.

    Args:
        model: One client's module.
        method: The method's name, for error messages.
        trained: Whether the method trains all parameters of the output layer.

    Raises:
        UserError: The module lacks ``head`` or ``features``, or freezes a part of a
            head that the method trains.
    """
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear) or not hasattr(model, "features"):
        raise UserError(
            f"{method} needs a model whose output layer is the nn.Linear 'head', fed by its "
            f"method 'features(x)'; {type(model).__name__} has none"
        )
    if trained and not all(parameter.requires_grad for parameter in head.parameters()):
        raise UserError(
            f"{method} trains the output layer 'head' completely; "
            f"{type(model).__name__} freezes parameters of it (requires_grad = False)"
        )
    return head


class Method(MethodSection, ABC):
    """A federated learning method. Subclass it in one file that ends with ``plugin =
    YourMethod``.

    Every method has four hooks: ``send``, ``start``, ``update`` and ``aggregate``;
    ``ServerModel`` implements all four. The other hooks are optional.

    Attributes:
        primary: Column of the scores that holds the method's main result.
        reference: Paper, for the table of methods.
        family: Kind of method, for the same table.
        models: Names of the client's models that have separate batch-norm buffers;
            "model" is the one that local training starts from.
        needs_rounds: Whether a round depends on the total number of rounds, so that a
            finished run cannot be continued.
        no_newcomers: Reason why the method has no model for clients that never trained;
            "" if it has one.
        only_synchronous: Reason why the server cannot combine uploads that started from
            different versions of its model (``[time]``); "" if it can, judging by its
            messages.
        uploads_rows: Reason why clients upload rows in later rounds and means in the
            first; "" if all rounds have the same entries. Transforms, attacks and
            aggregation rules need means in every round.
        short: Keys that make a few rounds fast and still exercise every part of the
            method, for the tests of all methods.
        keeps: Keys of options, ``ala`` and ``aggregation``, that work with the hooks of
            this class. A class that overrides a hook that an option needs (see
            ``options``) must list the option here; otherwise its keys are refused.
        varying: Names in ``server`` that ``aggregate`` may add or reshape.
        private_variables: Names of variables of ``fleet.train`` that the loss may read
            under sample-level privacy, because they are computed from received values
            or from privately trained ones. The loss must read no other data.
        trains: Groups of columns that a model must not freeze completely, each with the
            consequence that completes the message "all of it is frozen, so …".
        client_models: Names of models [P] in the private state that start as copies of
            the initial model.
        needs_head: "any" if the method reads the model's ``head`` and ``features``,
            "trained" if it trains all of the head too.
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
        """Raise TypeError, because neither checkpoints nor other ranks would receive
        the attribute.
        """
        raise TypeError(
            f"self.{name} = …: a method has no attributes that change; declare a tensor "
            "in server_state or client_state instead"
        )

    # Required: the four hooks of every method

    @abstractmethod
    def send(self, server: State, audience: Audience) -> Message:
        """Return the message to the clients. Runs on rank 0; must not change
        ``server``.

        Args:
            server: The server's state.
            audience: The ids of the receiving clients, the setup and the round.

        Returns:
            Tensors by name: ``[width]`` for all clients, or rows ``[n, width]`` in the
            order of ``audience.ids``. A ``Pool`` holds several models, of which each
            client receives some. A ``Mixture`` holds several models, of which each
            client receives a weighted sum.
        """

    @abstractmethod
    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the models that local training starts from, ``[n, P]``, or ``[P]`` if
        all clients start from the same one.

        The engine also calls it to score observers, clients outside the cohort, and
        discards the changes of their state.
        """

    @abstractmethod
    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        """Run the clients' part of a round: score, train, score.

        Args:
            fleet: The clients of the cohort on this rank.
            inbox: The entries of ``send`` by name, [width] or the clients' rows
                [n, width].

        Returns:
            The message to the server: a row for each client, ``[n, width]``, or a
            ``Mean`` if the server needs only the mean.
        """

    @abstractmethod
    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        """Update ``server`` from the clients' uploads. Runs on rank 0.

        Assign new tensors; never change one in place, because clients in the same
        process may still hold the old ones.

        Args:
            server: The server's state after the previous round.
            cohort: The clients that did not diverge.
            uplink: The uploads by name, rows [n, width] in the order of ``cohort.ids``;
                a ``Mean`` arrives as [width] or [k, width].
        """

    # Optional: the state before round 1

    def server_state(self, setup: Setup) -> State:
        """Return the server's state before round 1, tensors by name.

        ``aggregate`` may assign only these names, with the same dtype and shape. The
        shape may change for tensors without elements and for the names in ``varying``.
        A method with one model for all clients calls it ``model``.
        """
        return {}

    def client_state(self, setup: Setup) -> State:
        """Return the private state of ONE client before its first round, tensors by name.

        In ``fleet.state`` each tensor has the clients as an additional first dimension.
        """
        return {name: setup.initial() for name in self.client_models}

    # Optional: the loss, and the models that are scored

    def loss(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        """Return the loss of ONE client on one mini-batch.

        It may read its arguments and constants of the run, such as the method's keys.
        Numbers that change during the run must be variables of ``fleet.train``.

        Args:
            model: The client's module.
            batch: The mini-batch, samples ``batch.x`` and labels ``batch.y``.
            lane: The client's lane; ``lane.NAME`` is the client's row of the variable
                NAME of ``fleet.train``. Pass a penalty through
                ``lane.regulariser(term)``, which returns it and leaves it out of the
                recorded ``data_loss``.

        Returns:
            A scalar.
        """
        return functional.cross_entropy(model(batch.x), batch.y)

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Return the inbox for the other hooks: the message, and values computed from it
        that several hooks need.

        The engine calls it once before ``update``, ``observe`` and ``finish``.
        """
        return inbox

    def client_model(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> ClientModel:
        """Return THE model that each client would use for predictions now. It is scored
        as ``pre`` or ``post``.

        The hook may train: the engine restores all state afterwards, including buffers.
        A separate ``phase`` in ``fleet.train`` gives such a training other shuffles.

        Args:
            fleet: Clients of the cohort, or observers.
            inbox: The result of ``prepare``.
            rows: The models after this round's local training if ``trained``, else the
                models before it, [n, P] or [P].
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
        """Return further models to score, by the name of their column.

        The arguments are those of ``client_model``.
        """
        return {}

    # Optional: after the last round

    def finish(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score clients after the last round on one more message of ``send``. Changes
        of their state are discarded.
        """
        self.observe(fleet, inbox)

    def send_to_newcomers(self, server: State, audience: Audience) -> Message:
        """Return the message to newcomers, clients that never trained.

        Arguments and result are those of ``send``. The ids of newcomers follow those of
        the other clients; ``server`` and ``audience.setup`` have no entries for them.
        """
        return self.send(server, audience)

    def init_newcomers(self, fleet: Fleet, inbox: Inbox) -> None:
        """Assign the newcomers' private state ``fleet.state`` from the message, before
        they are scored and trained.

        With ``newcomers.epochs``, ``update`` then runs once as round 1, and its upload
        is discarded. Otherwise ``observe`` runs. Their state is discarded afterwards.
        """

    # Optional, and rarely needed

    def adapt(self, model: nn.Module) -> nn.Module:
        """Return the module of one client with the method's changes, such as additional
        blocks.

        Raises UserError for a model without the head that ``needs_head`` requires.
        """
        if self.needs_head:
            head_of(model, self.name, trained=self.needs_head != "any")
        return model

    def overlays(self) -> tuple[Overlay, ...]:
        """Return the overlays of messages that the method's keys switch on, the
        innermost first.
        """
        return ()

    def validation_share(self) -> float:
        """Return the share of a client's training samples, in [0, 1), held out for
        validation. Held-out samples are not trained on and do not count in weights.
        """
        return 0.0

    def notes(self, setup: Setup) -> list[str]:
        """Return notes to print before round 1, such as a warning about doubtful values
        of keys.
        """
        return []

    def training_loss(self) -> Loss:
        """Return the default loss of ``fleet.train``: ``loss``, or the engine's
        cross-entropy if the class does not override ``loss``.
        """
        return CROSS_ENTROPY if type(self).loss is Method.loss else self.loss

    def server_models(self, server: State) -> State:
        """Return further models [P] of the server by name, such as "class 3" or
        "cluster 0". They are saved but not evaluated.
        """
        return {}

    def found_clusters(self, server: State) -> Tensor | None:
        """Return the latest cluster of each client, int64 [M], −1 before its first;
        None for a method without clusters.

        If the experiment defines groups of clients (``[[shift]]``), the agreement of
        groups and clusters is recorded in scored rounds.
        """
        return None

    # Helpers for hooks; methods do not override them.

    def shares(self, fleet: Fleet) -> Tensor:
        """Return the weight of each client in a ``Mean``, [n]: its number of training
        samples, or 1 with ``weights = "uniform"``.
        """
        if self.weights == "uniform":
            return torch.ones_like(fleet.samples)
        return fleet.samples

    def score(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool = False,
    ) -> None:
        """Score ``client_model`` as ``pre``, or as ``post`` if ``trained``, and
        ``other_models``. Return at once in rounds that are not scored.

        The arguments are those of ``client_model``. For every method, ``pre`` covers
        all receivers of the message and ``post`` the clients that trained.
        """
        if not fleet.scoring.is_due or not (trained or fleet.scoring.scores_starts):
            return
        if not isinstance(rows, Tensor):
            when = "after" if trained else "before"
            raise TypeError(
                f"the models {when} local training are {describe_form(rows)}; expected a "
                "tensor of rows"
            )
        given = fleet, inbox, rows, trained
        before = fleet.results.sample_gradients.copy()
        with fleet.trial(), refuse_changes({"rows": rows}):
            own = "post" if trained else "pre", self.client_model(*given)
            score_models(fleet, [own, *self.other_models(*given).items()], trained)
        taken = fleet.results.sample_gradients - before
        fleet.results.scoring_gradients += taken

    def observe(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score observers, the clients outside the cohort. Changes of their state are
        discarded.
        """
        self.score(fleet, inbox, self.start(fleet, inbox))
