"""View of a cohort for ``Method.aggregate`` under ``[privacy]``, without the selected
clients.

The noise protects only the sum of the updates. A server that read the selected clients,
their numbers of samples or their weights would release more.
"""

from dataclasses import dataclass
from typing import NoReturn

from hpcfl.clients.setup import Setup
from hpcfl.rows.declared import UnknownName
from hpcfl.rows.layout import Layout


@dataclass(frozen=True)
class PrivateCohort:
    """The values of a ``Cohort`` that do not depend on the selected clients.

    Attributes:
        setup: The setup, as in ``Cohort``.
        round: The number of the round, as in ``Cohort``.
        share_of_clients: The expected share of all clients in a round.
        uniform: Whether weights are equal; always true, because numbers of samples are
            private.
    """

    setup: Setup
    round: int
    share_of_clients: float
    uniform: bool = True

    @property
    def layout(self) -> Layout:
        """Return the layout of a model's parameters."""
        return self.setup.layout

    def __getattr__(self, name: str) -> NoReturn:
        """Raise UnknownName for any other attribute, such as the ids of the clients."""
        raise UnknownName(
            f"the method's 'aggregate' reads cohort.{name}; with [privacy] a cohort has "
            "only setup, layout, round, share_of_clients and uniform, because the selected "
            "clients are private; take a method whose server only uses means"
        )
