"""What methods share that average only the body of the model, under a head that is
private or fixed.
"""

from typing import ClassVar

import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Field as Sent
from hpcfl.communication.message import Inbox, Mean, Message
from hpcfl.methods.base import Audience, ClientModel, Cohort, State
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows.layout import Group, Layout


class SharedBody(ServerModel):
    """FedAvg of the body, b ← Σ_S p_i b_i, under a head that does not travel.

    Server: ``model`` [P], the shared body b followed by the initial head h⁰. Down P_b,
    up P_b. Clients start from (b, h⁰), unless a method overrides ``received``.
    """

    family = "a shared body"
    shared: ClassVar[Group] = (
        "body"  # the group of columns that travels, a prefix of the row
    )

    def private(self, layout: Layout) -> slice:
        """The columns that do not travel: all after the shared ones."""
        return slice(layout.columns(self.shared).stop, layout.width)

    def send(self, server: State, audience: Audience) -> Message:
        private = self.private(audience.layout)
        initial = server["model"][
            private
        ]  # clients know it from the seed, so it counts no floats
        return {
            "body": server["model"][: private.start],
            "initial_head": Sent(initial, floats=0),
        }

    def under_initial_head(self, inbox: Inbox) -> Tensor:
        """The shared body under the initial head, ``[P]``, or ``[n, P]`` of rows."""
        return torch.cat([inbox["body"], inbox["initial_head"]], dim=-1)

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return self.under_initial_head(inbox)

    def other_models(
        self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool
    ) -> dict[str, ClientModel]:
        if trained:
            return {}
        return {
            "global": ClientModel(
                rows if rows.dim() == 1 else self.under_initial_head(inbox)
            )
        }

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        return {
            "body": Mean(
                trained[:, : self.private(fleet.layout).start], self.shares(fleet)
            )
        }

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        initial = server["model"][self.private(cohort.layout)]
        server["model"] = torch.cat([uplink["body"], initial])
