"""Base of methods whose clients keep a private part of the model, above or beside a
shared body.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Inbox
from hpcfl.methods._shared_body import SharedBody
from hpcfl.methods.base import Setup, State
from hpcfl.rows.layout import Group


class PrivatePart(SharedBody):
    """State and traffic of methods with a private part.

    Server: ``model`` [P], the shared body followed by the initial head. Client:
    ``head`` [P_h]. Down P_b, up P_b.

    Attributes:
        kept: The name of the private columns in a client's state.
    """

    trains: ClassVar[Mapping[Group, str]] = {
        "body": "nothing would be shared",
        "head": "nothing would be a client's own",
    }
    kept: ClassVar[str] = "head"

    def client_state(self, setup: Setup) -> State:
        return {
            **super().client_state(setup),
            self.kept: self.private_part(setup.layout, setup.initial()),
        }

    def received(self, fleet: Fleet, inbox: Inbox) -> Tensor:
        """Return the received columns joined with each client's own columns, ``[n,
        P]``.
        """
        return self.under_own_heads(fleet.layout, inbox, fleet.state[self.kept])

    def store_state(self, fleet: Fleet, trained: Tensor) -> None:
        super().store_state(fleet, trained)
        fleet.state[self.kept] = self.private_part(fleet.layout, trained)
