"""The clients' reports of their training losses, round by round."""

from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LossReports:
    """The reports that the server has received so far.

    Attributes:
        losses: float64 [clients], the mean loss of each client's last counted training
            on its own samples; NaN without a report.
        heard: int64 [clients], the round of that report; 0 without one.
        times: int64 [clients], the number of its counted trainings.
        totals: the sum of samples times loss over the clients of each round.
    """

    def __init__(self, samples: NDArray[np.int64]) -> None:
        """Set the number of samples of each client, int64 [clients]."""
        clients = len(samples)
        self._samples = samples
        self.losses = np.full(clients, np.nan)
        self.heard = np.zeros(clients, np.int64)
        self.times = np.zeros(clients, np.int64)
        self.totals: list[float] = []
        self._ids = Growing(np.int64)
        self._history = Growing(np.float64)

    @property
    def rounds(self) -> int:
        """Return the number of rounds with reports."""
        return len(self.totals)

    @property
    def history(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return all reports in order: the clients, int64 [n], and their losses,
        float64 [n].

        Neither array changes later.
        """
        return self._ids.array, self._history.array

    def hear(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        """Record the reports of the clients ``ids`` of the next round.

        A loss that is no number counts as 0. Otherwise a selection of large losses
        would always choose clients that diverged or have no training samples.
        """
        losses = np.nan_to_num(losses, nan=0.0, posinf=0.0, neginf=0.0)
        self.losses[ids] = losses
        self.heard[ids] = self.rounds + 1
        self.times[ids] += 1
        self.totals.append(fsum(self._samples[ids] * losses))
        self._ids.extend(ids)
        self._history.extend(losses)


class Growing:
    """An array that grows at its end; earlier entries never change."""

    def __init__(self, dtype: Any) -> None:
        self._buffer = np.empty(64, dtype)
        self._used = 0

    @property
    def array(self) -> NDArray[Any]:
        """Return the current array."""
        return self._buffer[: self._used]

    def extend(self, values: NDArray[Any]) -> None:
        """Append values."""
        used = self._used + len(values)
        if used > len(self._buffer):
            larger = np.empty(2 * used, self._buffer.dtype)
            larger[: self._used] = self.array
            self._buffer = larger
        self._buffer[self._used : used] = values
        self._used = used
