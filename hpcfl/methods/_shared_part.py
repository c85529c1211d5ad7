"""Base classes of methods that average only a part of the model, b ← Σ_S p_i b_i.

* ``SharedBody``: the body is shared, below the initial head.
* ``PrivatePart``: the body is shared, and each client has a private part.
* ``SharedHead``: the upper layers are shared, above a private body.

The server has ``model`` [P], the shared part with the initial private part. A subclass
of ``SharedBody`` may override ``cut_shared_part``, ``cut_private_part`` and ``join_parts``, which
split a row. P_b is the number of parameters of the body.
"""

from typing import ClassVar

import torch
from torch import Tensor

from hpcfl.methods.base import (
    Audience,
    ClientModel,
    Cohort,
    Fleet,
    Group,
    Inbox,
    Layout,
    Mean,
    Message,
    Sent,
    Setup,
    State,
)
from hpcfl.methods.fedavg import ServerModel


class SharedBody(ServerModel):
    """FedAvg of the body under the initial head h⁰, which is never sent.

    Down P_b, up P_b. Clients start from (b, h⁰), unless a method overrides ``received``.
    """

    family = "a shared body"
    # Upper layer of the body (methods-1.md §6).
    blended_layers: ClassVar[Group] = "neck"
    trains = {
        "body": "nothing would be shared",
        "head": "nothing would be personal",
    }

    def find_private_columns(self, layout: Layout) -> slice:
        """Return the private columns, which are all columns after the body."""
        return slice(layout.columns("body").stop, layout.width)

    def cut_shared_part(self, layout: Layout, rows: Tensor) -> Tensor:
        """Return the shared columns [..., P_b] of ``rows`` [..., P]."""
        return rows[..., : self.find_private_columns(layout).start]

    def cut_private_part(self, layout: Layout, rows: Tensor) -> Tensor:
        """Return the private columns of ``rows`` [..., P]."""
        return rows[..., self.find_private_columns(layout)]

    def join_parts(self, layout: Layout, shared: Tensor, private: Tensor) -> Tensor:
        """Join both parts into rows [..., P]."""
        return torch.cat([shared, private], dim=-1)

    def send(self, server: State, audience: Audience) -> Message:
        layout = audience.layout
        initial_head = self.cut_private_part(layout, server["model"])
        return {
            "body": self.cut_shared_part(layout, server["model"]),
            # Clients compute the initial head from the seed, so it counts no floats.
            "initial_head": Sent(initial_head, floats=0),
        }

    def add_initial_head(self, layout: Layout, inbox: Inbox) -> Tensor:
        """Return the shared body with the initial head, ``[P]``, or ``[n, P]`` if each
        client received a different body.
        """
        return self.join_parts(layout, inbox["body"], inbox["initial_head"])

    def add_own_heads(self, layout: Layout, inbox: Inbox, heads: Tensor) -> Tensor:
        """Return the shared body with each client's head, ``[n, P]``.

        Args:
            layout: The layout of a row.
            inbox: The received message, with ``body``.
            heads: The clients' heads [n, P − P_b].
        """
        bodies = inbox["body"].expand(len(heads), -1)
        return self.join_parts(layout, bodies, heads)

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        return self.add_initial_head(fleet.layout, inbox)

    def other_models(
        self,
        fleet: Fleet,
        inbox: Inbox,
        rows: Tensor,
        trained: bool,
    ) -> dict[str, ClientModel]:
        if trained:
            return {}
        shared = rows
        if rows.dim() == 2:  # each client has a model of its own
            shared = self.add_initial_head(fleet.layout, inbox)
        return {"global": ClientModel(shared)}

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        shared = self.cut_shared_part(fleet.layout, trained)
        return {"body": Mean(shared, self.shares(fleet))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        initial = self.cut_private_part(cohort.layout, server["model"])
        server["model"] = self.join_parts(cohort.layout, uplink["body"], initial)


class PrivatePart(SharedBody):
    """A shared body, and private parameters that each client keeps.

    Client: ``head`` [P_h]. Down P_b, up P_b.

    Attributes:
        kept: Name of the private columns in a client's state.
    """

    kept: ClassVar[str] = "head"

    def client_state(self, setup: Setup) -> State:
        return {
            **super().client_state(setup),
            self.kept: self.cut_private_part(setup.layout, setup.initial()),
        }

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the received columns joined with each client's private columns, ``[n,
        P]``.
        """
        return self.add_own_heads(fleet.layout, inbox, fleet.state[self.kept])

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        fleet.state[self.kept] = self.cut_private_part(fleet.layout, trained)


class SharedHead(ServerModel):
    """Shared upper layers g, with P_g parameters, above a private body.

    Server: ``model`` [P], the initial body with g. Client: ``body`` [P − P_g], the
    private body. Down P_g, up P_g. Clients start from (b_i, g). No column ``global`` is
    scored, because no body is shared.
    """

    family = "a shared head"

    def find_shared_columns(self, layout: Layout) -> slice:
        """Return the shared columns, which end with the last column of a row."""
        return layout.columns("head")

    def client_state(self, setup: Setup) -> State:
        start = self.find_shared_columns(setup.layout).start
        return {**super().client_state(setup), "body": setup.initial()[:start]}

    def send(self, server: State, audience: Audience) -> Message:
        return {"head": server["model"][self.find_shared_columns(audience.layout)]}

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return each client's private body with the shared layers, ``[n, P]``."""
        body = fleet.state["body"]
        heads = inbox["head"].expand(len(body), -1)
        return torch.cat([body, heads], dim=1)

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        fleet.state["body"] = trained[:, : self.find_shared_columns(fleet.layout).start]

    def upload(self, fleet: Fleet, inbox: Inbox, trained: Tensor) -> Message:
        heads = trained[:, self.find_shared_columns(fleet.layout)]
        return {"head": Mean(heads, self.shares(fleet))}

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> None:
        initial_body = server["model"][: self.find_shared_columns(cohort.layout).start]
        server["model"] = torch.cat([initial_body, uplink["head"]])
