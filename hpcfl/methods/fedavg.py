"""FedAvg: one global model, the weighted mean of the clients' models.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
``w ← Σ_S N_i w_i / Σ_S N_i``. Scored before local training (methods-1.md §2.1).
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from hpcfl import mixing
from hpcfl.fleet import Fleet
from hpcfl.message import Inbox, Message
from hpcfl.methods._ala import AdaptiveLocalAggregation
from hpcfl.methods.base import Cohort, Method, Setup, State


class FedAvg(Method):
    """Also the base of every method whose clients start from a model of the server and return theirs.

    Server: ``model`` [P]. Client: nothing (with ``ala`` that of adaptive local aggregation). Down P, up P.
    """

    reference = "McMahan et al., AISTATS 2017"
    ala: bool = Field(False, description="initialise clients by FedALA's adaptive local aggregation (s = 0.8, p = 1)")

    def server_state(self, setup: Setup) -> State:
        return {"model": setup.initial()}

    def client_state(self, setup: Setup) -> State:
        return self._adaptive().client_state(setup) if self.ala else {}

    def send(self, server: State, cohort: Cohort) -> Message:
        return {"model": server["model"]}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The model that came down, ``[P]`` or ``[n, P]``."""
        return inbox["model"]

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The model that a client trains from and is scored with before, ``[P]`` or ``[n, P]``."""
        received = self.received(fleet, inbox)
        return self._adaptive().adapt(fleet, received) if self.ala else received

    def fit(self, fleet: Fleet, rows: Tensor, inbox: Inbox, **how: Any) -> Tensor:
        """One local training as this method does it; ``how`` goes to ``fleet.train``."""
        return fleet.train(rows, **how)

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
        return {"model": trained}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        server["model"] = mixing.average(cohort.weights, uplink["model"])

    def observe(self, fleet: Fleet, inbox: Inbox) -> None:
        self.score_start(fleet, inbox, self.start(fleet, inbox))

    def score_start(self, fleet: Fleet, inbox: Inbox, start: Tensor) -> None:
        """Score what a client has before it trains, and the server's one model where there is one."""
        fleet.score("pre", start)
        if (received := self.received(fleet, inbox)).dim() == 1:
            fleet.score("global", received)

    def score_trained(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> None:
        """Score what a client has after it trained."""
        fleet.score("post", trained)

    def _adaptive(self) -> AdaptiveLocalAggregation:
        return AdaptiveLocalAggregation()


plugin = FedAvg
