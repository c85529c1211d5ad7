"""A cohort without the drawn clients, for a method's server under ``[privacy]``.

The noise covers the sum of the updates alone. A server that reads the drawn clients,
their samples or their weights would release more.
"""

from dataclasses import dataclass
from typing import NoReturn

from hpcfl.clients.setup import Setup
from hpcfl.rows.declared import UnknownName
from hpcfl.rows.layout import Layout


@dataclass(frozen=True)
class PrivateCohort:
    """The values of a ``Cohort`` that do not depend on the drawn clients.

    Attributes:
        setup: as in ``Cohort``.
        round: as in ``Cohort``.
        share_of_clients: the expected share of the clients that a round has.
        uniform: always true, as numbers of samples are data.
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
        """Raise UnknownName for any other value, such as the drawn clients'."""
        raise UnknownName(
            f"the method's 'aggregate' reads cohort.{name}; with [privacy] a cohort has "
            "only setup, layout, round, share_of_clients and uniform, and not the drawn "
            "clients; take a method whose server uses means alone"
        )
