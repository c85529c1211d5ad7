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
    # the upper layer of the body (methods-1.md §6)
    blended_layers: ClassVar[Group] = "neck"

    def private(self, layout: Layout) -> slice:
        """The columns that do not travel: all after the body's."""
        return slice(layout.columns("body").stop, layout.width)

    def shared_part(self, layout: Layout, rows: Tensor) -> Tensor:
        """The columns of ``rows`` [..., P] that travel, [..., P_b]."""
        return rows[..., : self.private(layout).start]

    def private_part(self, layout: Layout, rows: Tensor) -> Tensor:
        """The other columns of ``rows`` [..., P]."""
        return rows[..., self.private(layout)]

    def joined(self, layout: Layout, shared: Tensor, private: Tensor) -> Tensor:
        """The rows [..., P] of which these are both parts."""
        return torch.cat([shared, private], dim=-1)

    def send(self, server: State, audience: Audience) -> Message:
        layout = audience.layout
        body = self.shared_part(layout, server["model"])
        initial_head = self.private_part(layout, server["model"])
        # Clients know the head from the seed, so it counts no floats.
        return {"body": body, "initial_head": Sent(initial_head, floats=0)}

    def under_initial_head(self, layout: Layout, inbox: Inbox) -> Tensor:
        """The shared body under the initial head, ``[P]``, or ``[n, P]`` of rows."""
        return self.joined(layout, inbox["body"], inbox["initial_head"])

    def under_own_heads(self, layout: Layout, inbox: Inbox, heads: Tensor) -> Tensor:
        """The shared body under each client's own ``heads`` [n, P − P_b], ``[n, P]``."""
        bodies = inbox["body"].expand(len(heads), -1)
        return self.joined(layout, bodies, heads)

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return self.under_initial_head(fleet.layout, inbox)

    def other_models(
        self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool
    ) -> dict[str, ClientModel]:
        if trained:
            return {}
        if rows.dim() == 1:  # everybody's, which is that under the initial head
            return {"global": ClientModel(rows)}
        return {"global": ClientModel(self.under_initial_head(fleet.layout, inbox))}

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        shared = self.shared_part(fleet.layout, trained)
        return {"body": Mean(shared, self.shares(fleet))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        initial = self.private_part(cohort.layout, server["model"])
        server["model"] = self.joined(cohort.layout, uplink["body"], initial)
