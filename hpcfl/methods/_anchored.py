"""Personal models under an anchor that comes down.

``Anchored``: client i keeps its model w_i, trains on from it and minimises F_i(w) +
(strength/2)‖w − z_i‖². MR-MTL's anchor z_i is the mean of all models. ``MixedAnchor``,
which FedAMP and DiversiFed share: the server mixes the last uploads, z_i = (1 − Σ_j
β_ij) w_i + Σ_j β_ij w_j over the clients j that uploaded in the last round; what β is,
a method says. In round 1 there is no such anchor yet, and clients minimise F_i alone.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox, Message
from hpcfl.methods.base import Audience, Cohort, Setup, State
from hpcfl.methods.options.ala import Blending
from hpcfl.rows import mixing


class Anchored(Blending):
    """Client: ``model`` [P]. Down P (the anchor z), up P.

    The result is read from ``post``, after training.
    """

    primary: ClassVar[str] = "post"
    keeps: ClassVar[tuple[str, ...]] = ("ala",)

    @abstractmethod
    def strength(self) -> float:
        """The strength of the proximal term."""

    @abstractmethod
    def upload(self, fleet: Fleet, own: Tensor, trained: Tensor) -> Message:
        """What goes up from clients whose models were ``own`` [n, P] before the round
        and are ``trained`` [n, P] after it.
        """

    def client_state(self, setup: Setup) -> State:
        return {**super().client_state(setup), "model": setup.initial()}

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """The clients' own models ``[n, P]``; with ``ala`` blended with the anchor."""
        own = fleet.state["model"]
        return self.blended(fleet, own, inbox.get("anchor", own))

    def update(self, fleet: Fleet, inbox: Inbox) -> Message:
        own = fleet.state["model"]
        start = self.start(fleet, inbox)
        self.score(fleet, inbox, start)
        proximal = None
        if "anchor" in inbox:
            proximal = self.strength(), inbox["anchor"]
        trained = fleet.train(start, proximal=proximal)
        fleet.state["model"] = trained
        self.score(fleet, inbox, trained, trained=True)
        return self.upload(fleet, own, trained)


class MixedAnchor(Anchored):
    """Server: ``models`` [M, P], each client's last upload; ``uploaded``, bool [M], who
    sent one last round.

    Client: ``model`` [P]. Down P (the anchor z), up P.
    """

    family: ClassVar[str] = "mixed on the server"
    no_newcomers: ClassVar[str] = (
        "because what the server mixes for a client begins with what that client "
        "uploaded"
    )

    @abstractmethod
    def attraction(self, distances: Tensor, itself: Tensor) -> Tensor:
        """The weights β [m, n], float64, of the last n uploads in the anchors of m
        receivers.

        Args:
            distances: Euclidean, float64 [m, n], from each receiver's model to each
                upload.
            itself: bool [m, n], where that upload is the receiver's own; β must be 0
                there.
        """

    def server_state(self, setup: Setup) -> State:
        return {
            "models": mixing.repeated(setup.initial(), setup.clients),
            "uploaded": torch.zeros(setup.clients, dtype=torch.bool),
        }

    def send(self, server: State, audience: Audience) -> Message:
        senders = server["uploaded"].nonzero()[:, 0]
        if not len(senders):
            return {}  # round 1: no anchor yet
        receivers = torch.from_numpy(audience.ids)
        models = server["models"]
        distances = mixing.distances_within(models, receivers, senders)
        beta = self.attraction(distances, receivers[:, None] == senders)
        matrix = torch.zeros(len(receivers), len(models), dtype=torch.float64)
        matrix = matrix.index_copy(1, senders, beta)
        matrix[torch.arange(len(receivers)), receivers] = 1 - beta.sum(dim=1)
        return {"anchor": mixing.mix(matrix, models)}

    def upload(self, fleet: Fleet, own: Tensor, trained: Tensor) -> Message:
        return {"model": trained}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        server["models"] = mixing.replaced(server["models"], ids, uplink["model"])
        nobody = torch.zeros_like(server["uploaded"])
        server["uploaded"] = nobody.index_fill(0, ids, True)
