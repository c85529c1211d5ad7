"""Personalised models under an anchor: the server mixes the last uploads, clients stay near what they get.

The frame that FedAMP and DiversiFed share. Client i keeps its model w_i, starts from it and minimises
F_i(w) + (strength/2)‖w − z_i‖², with z_i = (1 − Σ_j β_ij) w_i + Σ_j β_ij w_j over the clients j that uploaded
last; a method says what β is. In round 1 there is no anchor yet.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from hpcfl.communication.message import Inbox, Message
from hpcfl.fleet import Fleet
from hpcfl.methods._ala import Blending
from hpcfl.methods.base import Audience, Cohort, Setup, State
from hpcfl.rows import mixing


class Anchored(Blending):
    """Server: ``models`` [M, P] last uploads, ``uploaded`` [M] who sent in the last round. Client:
    ``model`` [P].

    Down P (the anchor z), up P. Scored after local training.
    """

    primary: ClassVar[str] = "post"
    family: ClassVar[str] = "personal models, mixed on the server"

    @abstractmethod
    def attraction(self, distances: Tensor, itself: Tensor) -> Tensor:
        """β [m, n], float64, from distances [m, n] of each receiver to each last upload; 0 where
        bool ``itself``."""

    @abstractmethod
    def strength(self) -> float:
        """The strength of the proximal term."""

    def server_state(self, setup: Setup) -> State:
        return {"models": mixing.repeated(setup.initial(), setup.clients),
                "uploaded": torch.zeros(setup.clients, dtype=torch.bool)}

    def client_state(self, setup: Setup) -> State:
        return {"model": setup.initial()} | super().client_state(setup)

    def send(self, server: State, audience: Audience) -> Message:
        last = server["uploaded"].nonzero()[:, 0]
        if not len(last):
            return {}  # round 1: no anchor yet
        receivers, models = torch.from_numpy(audience.ids), server["models"]
        beta = self.attraction(mixing.distances_within(models, receivers, last), receivers[:, None] == last)
        matrix = torch.zeros(len(receivers), len(models), dtype=torch.float64).index_copy(1, last, beta)
        matrix[torch.arange(len(receivers)), receivers] = 1 - beta.sum(dim=1)
        return {"anchor": mixing.mix(matrix, models)}

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The model that local training starts from, ``[n, P]``: one's own, with ``ala`` blended
        with the anchor."""
        own = fleet.state["model"]
        return self.adaptive_aggregation().adapt(fleet, inbox.get("anchor", own)) if self.ala else own

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        proximal = (self.strength(), inbox["anchor"]) if "anchor" in inbox else None
        trained = fleet.state["model"] = fleet.train(start, proximal=proximal)
        self.score(fleet, inbox, trained, trained=True)
        return {"model": trained}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        server["models"] = mixing.replaced(server["models"], ids, uplink["model"])
        server["uploaded"] = torch.zeros_like(server["uploaded"]).index_fill(0, ids, True)

