"""Each client's own curve over rounds, so short that a page can hold those of thousands
of clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcfl.report.charts import Axis, axis
from hpcfl.report.series import BEYOND

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LEVELS = len(LETTERS) ** 2 - 1  # a number is one of so many heights, as two letters
MOST, FEWEST, ALL = (
    60,
    8,
    750_000,
)  # points of a curve, at most and at least; of all curves together


@dataclass(frozen=True)
class ClientCurves:
    """The curves of one chart. rounds: those that have a point, in units of the x axis,
    one for all curves.

    of_rows: by row the curves as ``REPETITION.CLIENT:LETTERS``, two letters a point,
    from the lowest number of the y axis, ``AA``, to its highest, ``_-``; ``__`` where a
    client has no number.
    """

    x: Axis
    y: Axis
    rounds: list[float]
    of_rows: dict[str, str]


def make(
    numbers: Mapping[str, Mapping[int, tuple[np.ndarray, np.ndarray]]],
) -> ClientCurves | None:
    """The curves of clients by row and repetition, each from rounds [T] and numbers [T,
    clients].

    NaN stands for no number. None where there are too many clients for a page, or no
    numbers.
    """
    runs = [run for of_row in numbers.values() for run in of_row.values()]
    scored = [rounds[(np.abs(values) < BEYOND).any(axis=1)] for rounds, values in runs]
    rounds = np.unique(np.concatenate(scored)) if scored else np.empty(0)
    points = min(
        MOST, len(rounds), ALL // max(1, sum(values.shape[1] for _, values in runs))
    )
    if points < min(FEWEST, len(rounds)) or points < 2:
        return None
    rounds = rounds[
        np.unique(np.linspace(0, len(rounds) - 1, points).round().astype(int))
    ]
    known = np.concatenate([values[np.abs(values) < BEYOND] for _, values in runs])
    x, y = (
        axis(float(rounds[0]), float(rounds[-1]), exact=True, least=1),
        axis(float(known.min()), float(known.max())),
    )
    return ClientCurves(
        x,
        y,
        x.place(rounds).round(1).tolist(),
        {
            row: " ".join(
                f"{repetition}.{client}:{_encoded(y, curve)}"
                for repetition, (at, values) in of_row.items()
                for client, curve in enumerate(_at(rounds, at, values).T)
            )
            for row, of_row in numbers.items()
        },
    )


def _at(wanted: np.ndarray, rounds: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The rows of ``values`` [T, clients] of the ``wanted`` rounds, NaN where there is
    none.
    """
    found = np.full((len(wanted), values.shape[1]), np.nan)
    _, here, there = np.intersect1d(wanted, rounds, return_indices=True)
    found[here] = values[there]
    return found


def _encoded(y: Axis, curve: np.ndarray) -> str:
    heights = np.where(
        np.abs(curve) < BEYOND,
        (curve - y.low) / (y.high - y.low) * (LEVELS - 1),
        LEVELS,
    )
    return "".join(
        LETTERS[height // len(LETTERS)] + LETTERS[height % len(LETTERS)]
        for height in heights.round().astype(int).tolist()
    )
