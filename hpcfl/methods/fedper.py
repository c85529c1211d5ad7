"""FedPer: the body of the model is shared, the head is each client's own; both are
trained together.

Arivazhagan et al., "Federated learning with personalization layers", 2019. b ← Σ_S p_i
b_i; the head h_i, the last linear layer, never leaves its client. The result is read
before local training, as FedALA does it; FedNH reads ``post``, and for the server's
model ``global``, the shared body under the initial head.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox
from hpcfl.methods._shared_body import SharedBody
from hpcfl.methods.base import Setup, State
from hpcfl.rows.layout import Group


class FedPer(SharedBody):
    """Server: ``model`` [P], the shared body followed by the initial head. Client:
    ``head`` [P_h].

    Down P_b, up P_b.

    Attributes:
        kept: the name, in a client's state, of the columns that do not travel.
    """

    reference = "Arivazhagan et al., arXiv 1912.00818"
    trains: ClassVar[Mapping[Group, str]] = {
        "body": "nothing would be shared",
        "head": "nothing would be a client's own",
    }

    kept: ClassVar[str] = "head"

    def client_state(self, setup: Setup) -> State:
        return {
            **super().client_state(setup),
            self.kept: setup.initial()[self.private(setup.layout)],
        }

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """What came down with each client's own columns, ``[n, P]``."""
        own = fleet.state[self.kept]
        return torch.cat([inbox["body"].expand(len(own), -1), own], dim=1)

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        super().store_state(fleet, trained)
        fleet.state[self.kept] = trained[:, self.private(fleet.layout)]


plugin = FedPer
