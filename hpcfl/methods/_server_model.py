"""Base class of methods whose clients receive a model, train it and upload it."""

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Group,
    Inbox,
    Mean,
    Message,
    Method,
    Setup,
    State,
)
from hpcfl.rows.declared import refuse_changes

if TYPE_CHECKING:
    from hpcfl.methods.options.ala import AdaptiveLocalAggregation

Proximal = tuple[float, Tensor]


class ServerModel(Method):
    """A method that splits ``update`` into smaller hooks with defaults. Subclasses
    override the hooks in which they differ.

    Server: ``model`` [P]. Client: none; with ``ala`` its last ``model`` and the state of
    ``AdaptiveLocalAggregation``. Down P, up P.

    Attributes:
        blended_layers: The layers that ``ala`` blends.
        inherited: Names of private models [P] that a newcomer initialises with the
            received model.
        last_model: Name of the client's last trained model in its state, initially the
            initial model; "" if the method does not store it.
        server_zeros: Names of further rows [P] in the server's state, initially zero.
    """

    blended_layers: ClassVar[Group] = 1
    inherited: ClassVar[tuple[str, ...]] = ()
    last_model: ClassVar[str] = ""
    server_zeros: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ("ala",)

    ala: bool = Field(
        False,
        description="blend the client's last model and the received one by FedALA's module "
        "(s = 0.8, p = 1) before training",
    )

    def adaptive_aggregation(self) -> "AdaptiveLocalAggregation":
        """Return ALA with the method's settings."""
        from hpcfl.methods.options.ala import AdaptiveLocalAggregation

        return AdaptiveLocalAggregation(layers=self.blended_layers)

    def server_state(self, setup: Setup) -> State:
        model = setup.initial()
        zeros = {name: torch.zeros_like(model) for name in self.server_zeros}
        return {"model": model, **zeros}

    def client_state(self, setup: Setup) -> State:
        state = self.adaptive_aggregation().client_state(setup) if self.ala else {}
        if self.last_model:
            state[self.last_model] = setup.initial()
        return {**state, **super().client_state(setup)}

    def send(self, server: State, audience: Audience) -> Message:
        return {"model": server["model"]}

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        trained = self.local_train(fleet, start, inbox)
        self.remember(fleet, trained)
        self.score(fleet, inbox, trained, trained=True)
        # Private state may have the same tensor.
        with refuse_changes({"trained": trained}):
            return self.upload(fleet, inbox, trained)

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        server["model"] = uplink["model"]

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the received model: ``[P]`` if it is the same for all, otherwise ``[n,
        P]``.
        """
        model: Tensor = inbox["model"]
        return model

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the model before training, ``[P]`` or ``[n, P]``: the received one,
        with ``ala`` blended.
        """
        received = self.received(fleet, inbox)
        return self.blended(fleet, received, received)

    def blended(self, fleet: Fleet, start: Tensor, received: Tensor) -> Tensor:
        """Return the models before local training: ``start``, or with ``ala`` the blends
        of the clients' last models and ``received``.
        """
        if not self.ala:
            return start
        return self.adaptive_aggregation().adapt(fleet, received)

    def local_train(self, fleet: Fleet, rows: Tensor, inbox: Inbox) -> Tensor:
        """Train the clients' models locally.

        Args:
            fleet: The n clients to train.
            rows: The models before training, [n, P] or [P].
            inbox: The result of ``prepare``.

        Returns:
            The trained models [n, P].
        """
        return fleet.train(
            rows,
            variables=self.loss_variables(fleet, inbox),
            proximal=self.proximal_term(fleet, inbox),
        )

    def loss_variables(self, fleet: Fleet, inbox: Inbox) -> State:
        """Return the inputs that ``loss`` reads as ``lane.NAME``, tensors [n, …] by
        name.
        """
        return {}

    def proximal_term(self, fleet: Fleet, inbox: Inbox) -> Proximal | None:
        """Return the proximal term of local training: its strength and its anchor, the
        models [P] or [n, P]; None without one.
        """
        return None

    def remember(self, fleet: Fleet, trained: Tensor) -> None:
        """Store the ``trained`` models [n, P] in the clients' state: the parts that the
        method needs, and the whole models for ``last_model`` and ``ala``.
        """
        self.store_state(fleet, trained)
        if self.last_model:
            fleet.state[self.last_model] = trained
        if self.ala:
            fleet.state["model"] = trained

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        """Store parts of the ``trained`` models [n, P] in ``fleet.state``."""

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        """Return the clients' message with their ``trained`` models [n, P]."""
        return {"model": Mean(trained, self.shares(fleet))}

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        """Return ``global``, the received model, before training if all clients
        received the same.
        """
        received = self.received(fleet, inbox)
        if trained or received.dim() == 2:
            return {}
        return {"global": ClientModel(received)}

    def init_newcomers(self, fleet: Fleet, inbox: Inbox) -> None:
        if not self.inherited:
            return
        received = self.received(fleet, self.prepare(fleet, inbox))
        for name in self.inherited:
            fleet.state[name] = fleet.rows(received).clone()
