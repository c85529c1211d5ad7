"""Base classes of methods with personal models and a proximal term to an anchor from
the server.

* ``Anchored``: client i continues training its personal model w_i and minimises F_i(w)
  + (strength/2)‖w − z_i‖². In MR-MTL the anchor z_i is the mean of all models.
* ``MixedAnchor``, the base class of FedAMP and DiversiFed: the server mixes the last
  uploads, z_i = (1 − Σ_j β_ij) w_i + Σ_j β_ij w_j. The sum runs over the clients j with
  an upload in the last round, and the method defines β. Round 1 has no anchor, so
  clients minimise only F_i.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from hpcfl.methods._server_model import Proximal, ServerModel
from hpcfl.methods.base import (
    UNWEIGHTED,
    Audience,
    Cohort,
    Fleet,
    Inbox,
    Message,
    Setup,
    State,
)
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
    def compute_strength(self) -> float:
        """Return the strength of the proximal term."""

    def prepare(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        """Add the clients' ``own`` models [n, P] before training."""
        return {**inbox, "own": fleet.state["model"]}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the anchor; before the first one, the clients' personal models."""
        model: Tensor = inbox["anchor" if "anchor" in inbox else "own"]
        return model

    def start(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the clients' personal models ``[n, P]``, with ``ala`` blended with the
        anchor.
        """
        return self.blended(fleet, inbox["own"], self.received(fleet, inbox))

    def proximal_term(self, fleet: Fleet, inbox: Inbox) -> Proximal | None:
        if "anchor" not in inbox:
            return None
        return self.compute_strength(), inbox["anchor"]


class MixedAnchor(Anchored):
    """State and traffic of methods that mix the last uploads.

    Server: ``models`` [M, P], each client's last upload; ``uploaded``, bool [M], the
    clients with an upload in the last round. Client: ``model`` [P]. Down P (the anchor
    z), up P.
    """

    family = "mixed on the server"
    readers = UNWEIGHTED
    no_newcomers = (
        "because the server computes a client's anchor from the client's last upload"
    )

    @abstractmethod
    def compute_attraction(
        self, models: Tensor, receivers: Tensor, senders: Tensor
    ) -> Tensor:
        """Return the weights β [m, n], float64, of the last n uploads in the anchors of
        m receivers; 0 for a receiver's own upload.

        A row must not depend on the other receivers.

        Args:
            models: Each client's last upload [M, P].
            receivers: The numbers of the receivers [m].
            senders: The numbers of the clients with an upload in the last round [n].
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
        beta = self.compute_attraction(models, receivers, senders)
        matrix = torch.zeros(len(receivers), len(models), dtype=torch.float64)
        matrix = matrix.index_copy(1, senders, beta)
        matrix[torch.arange(len(receivers)), receivers] = 1 - beta.sum(dim=1)
        return {"anchor": mixing.mix(matrix, models)}

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        return {"model": trained}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        ids = torch.from_numpy(cohort.ids)
        server["models"] = mixing.replace(server["models"], ids, uplink["model"])
        uploaded = torch.zeros_like(server["uploaded"])
        server["uploaded"] = uploaded.index_fill(0, ids, True)
