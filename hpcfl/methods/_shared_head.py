"""Base of methods that send only the upper layers, above a private body.

It is the mirror image of ``_shared_body.py``.
"""

from typing import ClassVar

import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.methods.base import Audience, Cohort, Setup, State
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows.layout import Layout


class SharedHead(ServerModel):
    """FedAvg of the upper layers, g ← Σ_S p_i g_i, with P_g parameters.

    Server: ``model`` [P], the initial body under the shared layers g. Client: ``body``
    [P − P_g], its own. Down P_g, up P_g. Clients start from (b_i, g). There is no
    column ``global``, because no body is shared.
    """

    family: ClassVar[str] = "a shared head"

    def shared(self, layout: Layout) -> slice:
        """Return the shared columns, up to the last one."""
        return layout.columns("head")

    def client_state(self, setup: Setup) -> State:
        start = self.shared(setup.layout).start
        return {**super().client_state(setup), "body": setup.initial()[:start]}

    def send(self, server: State, audience: Audience) -> Message:
        return {"head": server["model"][self.shared(audience.layout)]}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return each client's own body under the shared layers, ``[n, P]``."""
        body = fleet.state["body"]
        return torch.cat([body, inbox["head"].expand(len(body), -1)], dim=1)

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        super().store_state(fleet, trained)
        fleet.state["body"] = trained[:, : self.shared(fleet.layout).start]

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        heads = trained[:, self.shared(fleet.layout)]
        return {"head": Mean(heads, self.shares(fleet))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        initial_body = server["model"][: self.shared(cohort.layout).start]
        server["model"] = torch.cat([initial_body, uplink["head"]])
