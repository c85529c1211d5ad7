"""FedAvg: one global model, the weighted mean of the clients' models.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
``w ← Σ_S N_i w_i / Σ_S N_i``. Scored before local training (methods-1.md §2.1).
"""

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from hpcfl.communication.message import Inbox, Message
from hpcfl.fleet import Fleet
from hpcfl.fleet.kernels import Batch
from hpcfl.methods._ala import AdaptiveLocalAggregation
from hpcfl.methods._classwise import ClassWise
from hpcfl.methods.base import Cohort, Method, Setup, State, head_of
from hpcfl.rows import mixing


class FedAvg(Method):
    """Also the base of every method whose clients start from a model of the server and return theirs.

    Server: ``model`` [P] (with class-wise aggregation also what ``ClassWise`` keeps). Client: nothing (with ``ala`` that of
    adaptive local aggregation). Down P, up P.
    """

    family: ClassVar[str] = "one global model"
    reference = "McMahan et al., AISTATS 2017"
    ala: bool = Field(False, description="initialise clients by FedALA's adaptive local aggregation (s = 0.8, p = 1)")
    aggregation: Literal["average", "class-wise"] = Field(
        "average", description="class-wise: each client gets cwFedAvg's mix (output layer, WDR with λ = 10) instead of the mean")

    def adapt(self, model: nn.Module) -> nn.Module:
        if self._class_wise():
            head_of(model, self.name)
        return model

    def objective(self, model: nn.Module, batch: Batch, lane: Any) -> Tensor:
        loss, class_wise = self.loss(model, batch, lane), self._class_wise()
        penalty = class_wise.penalty(model, lane) if class_wise else None
        return loss if penalty is None else loss + penalty

    def server_state(self, setup: Setup) -> State:
        model, class_wise = setup.initial(), self._class_wise()
        return {"model": model} | (class_wise.server_state(setup, model) if class_wise else {})

    def client_state(self, setup: Setup) -> State:
        return self._adaptive().client_state(setup) if self.ala else {}

    def send(self, server: State, cohort: Cohort) -> Message:
        class_wise = self._class_wise()
        return class_wise.send(server, cohort) if class_wise else {"model": server["model"]}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The model that came down, ``[P]`` or ``[n, P]``."""
        class_wise = self._class_wise()
        return class_wise.received(inbox) if class_wise else inbox["model"]

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The model that a client trains from and is scored with before, ``[P]`` or ``[n, P]``."""
        received = self.received(fleet, inbox)
        return self._adaptive().adapt(fleet, received) if self.ala else received

    def fit(self, fleet: Fleet, rows: Tensor, inbox: Inbox, *, variables: State | None = None,
            **how: Any) -> Tensor:
        """One local training as this method does it; ``variables`` and ``how`` go to ``fleet.train``."""
        class_wise = self._class_wise()
        known = class_wise.variables(fleet, rows) if class_wise else {}
        return fleet.train(rows, variables={**known, **(variables or {})}, **how)

    def keep(self, fleet: Fleet, trained: Tensor) -> None:
        """What a client remembers of its trained model ``[n, P]``."""
        if self.ala:
            fleet.state["model"] = trained

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score_start(fleet, inbox, start)
        trained = self.fit(fleet, start, inbox)
        self.keep(fleet, trained)
        self.score_trained(fleet, inbox, trained)
        class_wise = self._class_wise()
        return {"model": trained, **(class_wise.uplink(fleet, trained) if class_wise else {})}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        server["model"] = mixing.average(cohort.weights, uplink["model"])
        if class_wise := self._class_wise():
            class_wise.aggregate(server, cohort, uplink)

    def observe(self, fleet: Fleet, inbox: Inbox) -> None:
        self.score_start(fleet, inbox, self.start(fleet, inbox))

    def score_start(self, fleet: Fleet, inbox: Inbox, start: Tensor) -> None:
        """Score what a client has before it trains, and the server's model."""
        fleet.score("pre", start)
        self.score_global(fleet, inbox)

    def score_global(self, fleet: Fleet, inbox: Inbox) -> None:
        """Score the server's one model, where there is one."""
        if (received := self.received(fleet, inbox)).dim() == 1:
            fleet.score("global", received)

    def score_trained(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> None:
        """Score what a client has after it trained."""
        fleet.score("post", trained)

    def _class_wise(self) -> ClassWise | None:
        return ClassWise() if self.aggregation == "class-wise" else None

    def _adaptive(self) -> AdaptiveLocalAggregation:
        return AdaptiveLocalAggregation()


plugin = FedAvg
