"""FedAvg: one global model, the weighted mean of the clients' models.

McMahan et al., "Communication-efficient learning of deep networks from decentralized
data", AISTATS 2017. The clients of a cohort S train from the server's model w and send
theirs up: ``w ← Σ_S N_i w_i / Σ_S N_i``. The result is read before local training, from
``pre`` (methods-1.md §2.1).

``FedAvg`` is the base of all methods whose server averages whole models,
``ServerModel``, which it extends, of those whose clients start from a model of the
server.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hpcfl.communication.message import Inbox, Message
from hpcfl.fleet import Fleet
from hpcfl.fleet.losses import Batch
from hpcfl.methods._classwise import ClassWise, class_models
from hpcfl.methods._server_model import (
    ServerModel as ServerModel,
)  # methods import it from here
from hpcfl.methods.base import Audience, Cohort, OptionHooks, Setup, State, head_of


class FedAvg(ServerModel):
    """Also the base of methods whose server averages whole models, and so can average
    them by class.

    Server: ``model`` [P] (with class-wise aggregation also what ``ClassWise`` keeps).
    Client: nothing. Down P, up P.
    """

    family: ClassVar[str] = "one global model"
    reference = "McMahan et al., AISTATS 2017"
    option_hooks: ClassVar[OptionHooks] = {
        **ServerModel.option_hooks,
        "aggregation": {
            "server_state": (),
            "send": (),
            "greet": (),
            "received": (),
            "start": ("received",),
            "known": (),
            "objective": (),
            "fit": ("known",),
            "reply": (),
            "update": ("start", "fit", "reply"),
            "aggregate": (),
        },
    }
    keeps: ClassVar[tuple[str, ...]] = ("aggregation",)
    aggregation: Literal["average", "class-wise"] = Field(
        "average",
        description="class-wise: clients get cwFedAvg's mix (output layer, WDR with λ = 10), not the mean",
    )

    def class_wise(self) -> ClassWise | None:
        """How models are aggregated by class; None where they are simply averaged."""
        return ClassWise() if self.aggregation == "class-wise" else None

    def adapt(self, model: nn.Module) -> nn.Module:
        if self.class_wise():
            head_of(model, self.name, trained=True)
        return model

    def objective(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        loss, class_wise = self.loss(model, batch, lane), self.class_wise()
        penalty = class_wise.penalty(model, lane) if class_wise else None
        return loss if penalty is None else loss + lane.regulariser(penalty)

    def server_state(self, setup: Setup) -> State:
        state, class_wise = super().server_state(setup), self.class_wise()
        return state | (
            class_wise.server_state(setup, state["model"]) if class_wise else {}
        )

    def send(self, server: State, audience: Audience) -> Message:
        class_wise = self.class_wise()
        if not class_wise:
            return super().send(server, audience)
        return class_wise.send(server, server["distributions"][audience.ids])

    def greet(self, server: State, audience: Audience) -> Message:
        """With class-wise aggregation to newcomers an even mix, as everybody's before
        their first round.
        """
        class_wise, setup = self.class_wise(), audience.setup
        if not class_wise:
            return super().greet(server, audience)
        return class_wise.send(
            server,
            torch.full((len(audience.ids), setup.classes), 1 / setup.classes).double(),
        )

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        class_wise = self.class_wise()
        return (
            class_wise.received(inbox) if class_wise else super().received(fleet, inbox)
        )

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
        return (
            {
                f"class {label}": model
                for label, model in enumerate(class_models(server))
            }
            if self.class_wise()
            else {}
        )


plugin = FedAvg
