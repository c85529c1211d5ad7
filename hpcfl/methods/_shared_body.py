"""Base of methods that average only the body of the model, under a private or fixed
head.
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
    """FedAvg of the body, b ← Σ_S p_i b_i, under a head that is never sent.

    Server: ``model`` [P], the shared body b followed by the initial head h⁰. Down P_b,
    up P_b. Clients start from (b, h⁰), unless a method overrides ``received``.
    """

    family = "a shared body"
    # the upper layer of the body (methods-1.md §6)
    blended_layers: ClassVar[Group] = "neck"

    def private(self, layout: Layout) -> slice:
        """Return the columns that are never sent: all after the body's."""
        return slice(layout.columns("body").stop, layout.width)

    def shared_part(self, layout: Layout, rows: Tensor) -> Tensor:
        """Return the shared columns of ``rows`` [..., P], [..., P_b]."""
        return rows[..., : self.private(layout).start]

    def private_part(self, layout: Layout, rows: Tensor) -> Tensor:
        """Return the private columns of ``rows`` [..., P]."""
        return rows[..., self.private(layout)]

    def joined(self, layout: Layout, shared: Tensor, private: Tensor) -> Tensor:
        """Join both parts into rows [..., P]."""
        return torch.cat([shared, private], dim=-1)

    def send(self, server: State, audience: Audience) -> Message:
        layout = audience.layout
        body = self.shared_part(layout, server["model"])
        initial_head = self.private_part(layout, server["model"])
        # Clients compute the initial head from the seed, so it counts no floats.
        return {"body": body, "initial_head": Sent(initial_head, floats=0)}

    def under_initial_head(self, layout: Layout, inbox: Inbox) -> Tensor:
        """Return the shared body under the initial head, ``[P]``, or ``[n, P]`` of
        rows.
        """
        return self.joined(layout, inbox["body"], inbox["initial_head"])

    def under_own_heads(self, layout: Layout, inbox: Inbox, heads: Tensor) -> Tensor:
        """Return the shared body under each client's own ``heads`` [n, P − P_b], ``[n,
        P]``.
        """
        bodies = inbox["body"].expand(len(heads), -1)
        return self.joined(layout, bodies, heads)

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return self.under_initial_head(fleet.layout, inbox)

    def other_models(
        self, fleet: Fleet, inbox: Inbox, rows: Tensor, trained: bool
    ) -> dict[str, ClientModel]:
        if trained:
            return {}
        if rows.dim() == 1:  # one model for all clients, under the initial head
            return {"global": ClientModel(rows)}
        return {"global": ClientModel(self.under_initial_head(fleet.layout, inbox))}

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        shared = self.shared_part(fleet.layout, trained)
        return {"body": Mean(shared, self.shares(fleet))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        initial = self.private_part(cohort.layout, server["model"])
        server["model"] = self.joined(cohort.layout, uplink["body"], initial)
