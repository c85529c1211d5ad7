"""FedAvg: one global model, the weighted mean of the clients' models.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
The clients of a cohort S train from the server's model w and send theirs up: ``w ← Σ_S N_i w_i / Σ_S N_i``.
The result is read before local training, from ``pre`` (methods-1.md §2.1).

``ServerModel`` is the base of all methods whose clients start from a model of the server, ``FedAvg`` of
those whose server averages whole models.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.fleet import Fleet
from hpcfl.fleet.losses import Batch
from hpcfl.methods._ala import Blending
from hpcfl.methods._classwise import ClassWise, class_models
from hpcfl.methods.base import Audience, ClientModel, Cohort, Setup, State, head_of


class ServerModel(Blending):
    """The base of every method whose clients start from a model of the server and return theirs.

    Server: ``model`` [P]. Client: nothing (with ``ala`` the state of ``AdaptiveLocalAggregation``). Down P,
    up P.

    inherited: names of private models [P] for which a newcomer takes the model that it receives.
    """

    inherited: ClassVar[tuple[str, ...]] = ()

    def server_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def send(self, server: State, audience: Audience) -> Message:
        return {"model": server["model"]}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The model that came down: ``[P]`` if it is the same for all, else ``[n, P]``."""
        model: Tensor = inbox["model"]
        return model

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The model that came down, ``[P]`` or ``[n, P]``; with ``ala`` blended with each client's own."""
        received = self.received(fleet, inbox)
        return self.adaptive_aggregation().adapt(fleet, received) if self.ala else received

    def known(self, fleet: Fleet, rows: Tensor) -> State:
        """What an option of the objective reads as ``lane.NAME``: tensors [n, …] by name.

        rows: what training starts from, which tells their type and device.
        """
        return {}

    def fit(self, fleet: Fleet, rows: Tensor, inbox: Inbox, *, variables: State | None = None,
            **how: Any) -> Tensor:
        """One local training from ``rows`` as this method does it: the trained rows [n, P].

        ``variables``, beside those that are ``known``, and ``how`` go to ``fleet.train``.
        """
        return fleet.train(rows, variables={**self.known(fleet, rows), **(variables or {})}, **how)

    def keep(self, fleet: Fleet, trained: Tensor) -> None:
        """Assign in ``fleet.state`` what clients remember of their ``trained`` models [n, P]."""
        if self.ala:
            fleet.state["model"] = trained

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        inbox = self.opened(fleet, inbox)
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        trained = self.fit(fleet, start, inbox)
        self.keep(fleet, trained)
        self.score(fleet, inbox, trained, trained=True)
        return self.reply(fleet, inbox, trained)

    def reply(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        """What goes up from clients whose training came to ``trained`` [n, P]."""
        return {"model": Mean(trained, self.shares(fleet))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        server["model"] = uplink["model"]

    def inherit(self, fleet: Fleet, inbox: Inbox) -> None:
        if self.inherited:
            received = fleet.rows(self.received(fleet, self.opened(fleet, inbox)))
            fleet.state |= {name: received.clone() for name in self.inherited}

    def other_models(self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool) -> dict[str, ClientModel]:
        """Before training ``global``, the received model, where all clients received the same."""
        received = self.received(fleet, inbox)
        return {} if trained or received.dim() == 2 else {"global": ClientModel(received)}


class FedAvg(ServerModel):
    """Also the base of methods whose server averages whole models, and so can average them by class.

    Server: ``model`` [P] (with class-wise aggregation also what ``ClassWise`` keeps). Client: nothing.
    Down P, up P.
    """

    family: ClassVar[str] = "one global model"
    reference = "McMahan et al., AISTATS 2017"
    aggregation: Literal["average", "class-wise"] = Field(
        "average",
        description="class-wise: clients get cwFedAvg's mix (output layer, WDR with λ = 10), not the mean")

    def class_wise(self) -> ClassWise | None:
        """How models are aggregated by class; None where they are simply averaged."""
        return ClassWise() if self.aggregation == "class-wise" else None

    def adapt(self, model: nn.Module) -> nn.Module:
        if self.class_wise():
            head_of(model, self.name)
        return model

    def objective(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        loss, class_wise = self.loss(model, batch, lane), self.class_wise()
        penalty = class_wise.penalty(model, lane) if class_wise else None
        return loss if penalty is None else loss + lane.regulariser(penalty)

    def server_state(self, setup: Setup) -> State:
        state, class_wise = super().server_state(setup), self.class_wise()
        return state | (class_wise.server_state(setup, state["model"]) if class_wise else {})

    def send(self, server: State, audience: Audience) -> Message:
        class_wise = self.class_wise()
        if not class_wise:
            return super().send(server, audience)
        return class_wise.send(server, server["distributions"][audience.ids])

    def greet(self, server: State, audience: Audience) -> Message:
        """With class-wise aggregation to newcomers an even mix, as everybody's before their first round."""
        class_wise, setup = self.class_wise(), audience.setup
        if not class_wise:
            return super().greet(server, audience)
        return class_wise.send(server, torch.full((len(audience.ids), setup.classes),
                                                  1 / setup.classes).double())

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        class_wise = self.class_wise()
        return class_wise.received(inbox) if class_wise else super().received(fleet, inbox)

    def known(self, fleet: Fleet, rows: Tensor) -> State:
        class_wise = self.class_wise()
        return class_wise.variables(fleet, rows) if class_wise else {}

    def reply(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        class_wise = self.class_wise()
        added = class_wise.uplink(fleet, trained) if class_wise else {}
        return {**super().reply(fleet, inbox, trained), **added}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        super().aggregate(server, cohort, uplink)
        if class_wise := self.class_wise():
            class_wise.aggregate(server, cohort, uplink)

    def server_models(self, server: State) -> State:
        """With class-wise aggregation the class models."""
        return ({f"class {label}": model for label, model in enumerate(class_models(server))}
                if self.class_wise() else {})


plugin = FedAvg
