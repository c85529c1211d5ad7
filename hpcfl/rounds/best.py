"""The best round so far, and the state before it, from which its models can be made
again.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from hpcfl.scores._described import Measure
from hpcfl.scores._metric_name import MetricName
from hpcfl.storage.checkpoint import Best
from hpcfl.storage.clients import ClientStore


class BestRound:
    """Watches the number that counts, and holds on to the state before the best round.

    Nothing is copied: neither the server nor the clients change a tensor of their
    state, they make new ones. What it holds is written with the next checkpoint, which
    a resumed run goes on from; rounds after that are played again, and found the best
    again.
    """

    def __init__(self, column: str, measure: Measure, number: float | None) -> None:
        """``measure`` in ``column`` counts; ``number`` is the best so far, None before
        any.
        """
        self._name = str(MetricName(measure.recorded, column))
        self._measure, self._number = measure, number
        self._before: Best | None = None
        self._unwritten: Best | None = None

    def before(
        self, round: int, server: Mapping[str, Tensor] | None, clients: ClientStore
    ) -> None:
        """Take the state as it is before a round. ``server``: None but on rank 0."""
        self._before = Best(
            round - 1, np.nan, server and dict(server), clients.snapshot()
        )

    def found(self, values: Mapping[str, Any]) -> float | None:
        """On rank 0: the number of a round with these ``values`` if it is the best so
        far, else None.
        """
        number = float(values.get(self._name, np.nan))
        if np.isnan(number) or (
            self._number is not None
            and self._measure.rank(number) <= self._measure.rank(self._number)
        ):
            return None
        return number

    def keep(self, number: float) -> None:
        """The round whose state ``before`` was given is the best."""
        assert self._before is not None
        self._number = number
        self._unwritten = Best(
            self._before.round, number, self._before.server, self._before.rows
        )

    def taken(self) -> Best | None:
        """The best state, unless a checkpoint has it already."""
        best, self._unwritten = self._unwritten, None
        return best
