"""What clients have told the server of their trainings, round by round."""

from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Told:
    """What the server has heard so far.

    Attributes:
        losses: float64 [clients], the mean loss of each client's last training that
            counted, on its own samples; NaN where it has told none.
        heard: int64 [clients], the round of it; 0 where it has told none.
        times: int64 [clients], how many of its trainings counted.
        totals: of each round the sum of samples times loss over its clients.
    """

    def __init__(self, samples: NDArray[np.int64]) -> None:
        """``samples``: int64 [clients], each client's."""
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
        """How many rounds have been heard of."""
        return len(self.totals)

    @property
    def history(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Who told something, int64 [n], and which loss, float64 [n], of all rounds one
        after the other. Neither array is changed later.
        """
        return self._ids.array, self._history.array

    def hear(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        """Take what the clients ``ids`` of the next round tell.

        A loss that is no number counts as 0: who diverged, or has no samples to train
        on, would be asked forever by who goes for large losses.
        """
        losses = np.nan_to_num(losses, nan=0.0, posinf=0.0, neginf=0.0)
        self.losses[ids] = losses
        self.heard[ids] = self.rounds + 1
        self.times[ids] += 1
        self.totals.append(fsum(self._samples[ids] * losses))
        self._ids.extend(ids)
        self._history.extend(losses)


class Growing:
    """An array that grows at its end; what it was before is never written to again."""

    def __init__(self, dtype: Any) -> None:
        self._buffer = np.empty(64, dtype)
        self._used = 0

    @property
    def array(self) -> NDArray[Any]:
        """What there is by now."""
        return self._buffer[: self._used]

    def extend(self, values: NDArray[Any]) -> None:
        """Put values at the end."""
        used = self._used + len(values)
        if used > len(self._buffer):
            larger = np.empty(2 * used, self._buffer.dtype)
            larger[: self._used] = self.array
            self._buffer = larger
        self._buffer[self._used : used] = values
        self._used = used
