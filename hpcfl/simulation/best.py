"""The best round so far, and the state before it, from which its models can be made
again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from hpcfl.scores.metric_names import Measure, MetricName
from hpcfl.storage.checkpoint import Best
from hpcfl.storage.clients import ClientStore


class BestRound:
    """Watches the number that counts, and holds on to the state before the best round.

    Nothing is copied: neither the server nor the clients change a tensor of their
    state, they make new ones. The state is saved with the next checkpoint. A resumed
    run plays the rounds after that checkpoint again, and finds the same best one.
    """

    def __init__(self, column: str, measure: Measure, number: float | None) -> None:
        """Args:
        column, measure: what counts.
        number: the best so far, None before any.
        """
        self._name = str(MetricName(measure.recorded, column))
        self._measure = measure
        self._number = number
        self._before: Best | None = None
        self._unwritten: Best | None = None

    def before(
        self, round: int, server: Mapping[str, Tensor] | None, clients: ClientStore
    ) -> None:
        """Take the state as it is before a round. ``server``: None but on rank 0."""
        self._before = Best(
            round - 1, np.nan, server and dict(server), clients.snapshot()
        )

    def improvement(self, values: Mapping[str, Any]) -> float | None:
        """On rank 0: the number of a round with these ``values`` if it is the best so
        far, else None.
        """
        number = float(values.get(self._name, np.nan))
        if np.isnan(number):
            return None
        rank, best = self._measure.rank, self._number
        if best is not None and rank(number) <= rank(best):
            return None
        return number

    def keep(self, number: float) -> None:
        """Mark the round whose state ``before`` received as the best."""
        assert self._before is not None
        self._number = number
        self._unwritten = replace(self._before, number=number)

    def take(self) -> Best | None:
        """Return the best state, unless a checkpoint has it already."""
        best, self._unwritten = self._unwritten, None
        return best
