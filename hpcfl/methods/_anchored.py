"""Personal models with a proximal term to an anchor from the server.

``Anchored``: client i keeps its model w_i, trains on from it and minimises F_i(w) +
(strength/2)‖w − z_i‖². MR-MTL's anchor z_i is the mean of all models. FedAMP and
DiversiFed share ``MixedAnchor``, in which the server mixes the last uploads: z_i = (1 −
Σ_j β_ij) w_i + Σ_j β_ij w_j. The sum runs over the clients j of the last round's
uploads, and the method defines β. In round 1 there is no such anchor, and clients
minimise F_i alone.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from hpcfl.methods._server_model import Proximal, ServerModel
from hpcfl.methods.base import Audience, Cohort, Fleet, Inbox, Message, Setup, State
from hpcfl.rows import mixing


class Anchored(ServerModel):
    """State and traffic of methods with an anchor.

    Client: ``model`` [P]. Down P (the anchor z), up P. The result is ``post``, after
    training.
    """

    primary = "post"
    last_model = "model"
    keeps = ("ala",)

    @abstractmethod
    def strength(self) -> float:
        """Return the strength of the proximal term."""

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add the clients' ``own`` models [n, P] before training."""
        return {**inbox, "own": fleet.state["model"]}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the anchor, or the clients' own models before there is one."""
        model: Tensor = inbox["anchor" if "anchor" in inbox else "own"]
        return model

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the clients' own models ``[n, P]``; with ``ala`` blended with the
        anchor.
        """
        return self.blended(fleet, inbox["own"], self.received(fleet, inbox))

    def proximal_term(self, fleet: Fleet, inbox: Inbox) -> Proximal | None:
        if "anchor" not in inbox:
            return None
        return self.strength(), inbox["anchor"]


class MixedAnchor(Anchored):
    """State and traffic of methods that mix the last uploads.

    Server: ``models`` [M, P], each client's last upload; ``uploaded``, bool [M], the
    clients with an upload in the last round. Client: ``model`` [P]. Down P (the anchor
    z), up P.
    """

    family = "mixed on the server"
    no_newcomers = (
        "because what the server mixes for a client begins with what that client "
        "uploaded"
    )

    @abstractmethod
    def attraction(self, distances: Tensor, itself: Tensor) -> Tensor:
        """Return the weights β [m, n], float64, of the last n uploads in the anchors of
        m receivers.

        Args:
            distances: Euclidean, float64 [m, n], from each receiver's model to each
                upload.
            itself: bool [m, n], True for the receiver's own upload; β must be 0 there.
        """

    def server_state(self, setup: Setup) -> State:
        return {
            "models": mixing.repeat(setup.initial(), setup.clients),
            "uploaded": torch.zeros(setup.clients, dtype=torch.bool),
        }

    def send(self, server: State, audience: Audience) -> Message:
        senders = server["uploaded"].nonzero()[:, 0]
        if not len(senders):
            return {}  # round 1: no anchor yet
        receivers = torch.from_numpy(audience.ids)
        models = server["models"]
        distances = mixing.compute_distances_within(models, receivers, senders)
        beta = self.attraction(distances, receivers[:, None] == senders)
        matrix = torch.zeros(len(receivers), len(models), dtype=torch.float64)
        matrix = matrix.index_copy(1, senders, beta)
        matrix[torch.arange(len(receivers)), receivers] = 1 - beta.sum(dim=1)
        return {"anchor": mixing.mix(matrix, models)}

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        return {"model": trained}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        server["models"] = mixing.replace(server["models"], ids, uplink["model"])
        nobody = torch.zeros_like(server["uploaded"])
        server["uploaded"] = nobody.index_fill(0, ids, True)
