"""Where everything of a page's charts lies: axes, lines, bands and dots in a square of
SIZE × SIZE units.

The square is stretched to whatever room a screen has; its y grows downwards, as in SVG.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from hpcfl.report.series import BEYOND, Curve, thinned
from hpcfl.report.style import Look

SIZE = 1000
TICKS = 8  # about so many on an axis
BUCKETS = 150  # of points along a line, two points each: what a screen shows
COLUMNS = 200  # of dots along a strip
STACK = 5  # dots above one another there; further clients share the last one
NAMED = 8  # clients of a dot that are named
STROKE = 2  # pixels that a line is wide


@dataclass(frozen=True)
class Axis:
    """A range of numbers, and the marks on it: where each lies, in percent of the
    range, and its text.
    """

    low: float
    high: float
    ticks: list[tuple[float, str]]

    def place(self, numbers: np.ndarray) -> np.ndarray:
        """Where numbers lie along the axis, in [0, SIZE]."""
        placed: np.ndarray = np.clip(
            SIZE * (numbers - self.low) / (self.high - self.low), 0, SIZE
        )
        return placed


@dataclass(frozen=True)
class Line:
    """A curve and its band as paths; ``end``: its last number as text."""

    label: str
    colour: str
    dash: str
    path: str
    band: str
    end: str


@dataclass(frozen=True)
class Curves:
    """Lines over one x axis. name: of the axis; label: what stands below it."""

    name: str
    label: str
    x: Axis
    y: Axis
    lines: list[Line]


@dataclass(frozen=True)
class Dot:
    """A dot of a strip. clients: those it stands for, as ``repetition.client``, and how
    many more.
    """

    path: str
    clients: str
    more: int


@dataclass(frozen=True)
class Strip:
    """The clients' numbers of one row: dots, the box from the first to the third
    quartile, the median.

    dash: of the line of one client over rounds.
    """

    label: str
    colour: str
    dash: str
    dots: list[Dot]
    box: str
    median: str


@dataclass(frozen=True)
class Spread:
    """Strips above one another. repetitions: what each repetition is called, by its
    number.
    """

    x: Axis
    strips: list[Strip]
    repetitions: list[str]


def axis(low: float, high: float, exact: bool = False, least: float = 0.0) -> Axis:
    """An axis from ``low`` to ``high``, widened to whole steps unless it is to be
    ``exact``.

    least: the smallest step between two marks.
    """
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-3):
        low, high = low - max(abs(low), 1) / 20, high + max(abs(high), 1) / 20
    step = _step(max(least, (high - low) / TICKS))
    if not exact:
        low, high = step * floor(low / step), step * ceil(high / step)
    marks = [
        step * number
        for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
    ]
    return Axis(
        low, high, [(100 * (mark - low) / (high - low), short(mark)) for mark in marks]
    )


def short(number: float) -> str:
    """A number for an axis, such as ``0.2``, ``1500`` or ``12M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= max(size, 1e4):
            return f"{number / size:.4g}{letter}"
    return f"{number:.6g}"


def curves(
    name: str,
    label: str,
    of_rows: Mapping[str, Curve],
    looks: Mapping[str, Look],
    form: str,
) -> Curves | None:
    """The lines of rows by label, in order; None where none has a point. ``form``: of
    numbers as text.
    """
    drawn = {row: curve for row, curve in of_rows.items() if len(curve.rounds)}
    if not drawn or not any(curve.x.any() for curve in drawn.values()):
        return None
    x = axis(
        0 if name != "rounds" else min(curve.x.min() for curve in drawn.values()),
        max(curve.x.max() for curve in drawn.values()),
        exact=True,
        least=float(name == "rounds"),
    )
    lowest = min((curve.mean - curve.std).min() for curve in drawn.values())
    if all((curve.mean >= 0).all() for curve in drawn.values()):
        lowest = max(
            lowest, 0.0
        )  # a band that reaches below what a number can be says nothing there
    y = axis(lowest, max((curve.mean + curve.std).max() for curve in drawn.values()))
    lines = []
    for row, curve in drawn.items():
        few = curve.at(thinned(curve.mean, BUCKETS))
        along, above, below = x.place(few.x), few.mean + few.std, few.mean - few.std
        band = (
            ""
            if few.runs < 2
            else _path(
                np.concatenate([along, along[::-1]]),
                SIZE - y.place(np.concatenate([above, below[::-1]])),
            )
            + "Z"
        )
        lines.append(
            Line(
                row,
                looks[row].color,
                looks[row].strokes(STROKE),
                _path(along, SIZE - y.place(few.mean)),
                band,
                format(float(curve.mean[-1]), form),
            )
        )
    return Curves(name, label, x, y, lines)


def spread(
    of_rows: Mapping[str, Mapping[int, np.ndarray]],
    looks: Mapping[str, Look],
    repetitions: list[str],
) -> Spread | None:
    """The clients' numbers [clients] of each row and repetition; NaN where a client has
    none.

    None where no client has a number.
    """
    everything = np.concatenate(
        [numbers for row in of_rows.values() for numbers in row.values()]
    )
    known = everything[np.abs(everything) < BEYOND]  # False for NaN
    if not known.size:
        return None
    x = axis(float(known.min()), float(known.max()))
    strips = []
    for number, (row, of_repetitions) in enumerate(of_rows.items()):
        clients = [
            (float(value), f"{repetition}.{client}")
            for repetition, numbers in of_repetitions.items()
            for client, value in enumerate(numbers)
            if abs(value) < BEYOND
        ]
        strips.append(_strip(row, looks[row], clients, x, number, len(of_rows)))
    return Spread(x, strips, repetitions)


def _strip(
    label: str,
    look: Look,
    clients: Sequence[tuple[float, str]],
    x: Axis,
    number: int,
    count: int,
) -> Strip:
    """The strip at place ``number`` of ``count``; ``clients``: their values and names."""
    height = SIZE / count
    middle = height * (number + 0.5)
    columns: dict[int, list[tuple[float, str]]] = {}  # places and names
    for value, name in sorted(clients):
        at = float(x.place(np.array(value)))
        columns.setdefault(round(at * COLUMNS / SIZE), []).append((at, name))
    dots = []
    for _, found in sorted(columns.items()):
        groups = [[one] for one in found[: STACK - 1]] + (
            [found[STACK - 1 :]] if len(found) >= STACK else []
        )
        for level, group in enumerate(groups):
            side = (
                (level + 1) // 2 * (1 if level % 2 else -1)
            )  # 0, 1, -1, 2, -2: around the middle
            y, names = middle + side * 0.8 * height / STACK, [name for _, name in group]
            dots.append(
                Dot(
                    f"M{group[0][0]:.1f} {y:.1f}h0",
                    " ".join(names[:NAMED]),
                    max(0, len(group) - NAMED),
                )
            )
    colour, dash = look.color, look.strokes(STROKE)
    if not clients:
        return Strip(label, colour, dash, [], "", "")
    first, median, third = x.place(
        np.percentile([value for value, _ in clients], (25, 50, 75))
    )
    top, tall = middle - 0.42 * height, 0.84 * height
    return Strip(
        label,
        colour,
        dash,
        dots,
        f"M{first:.1f} {top:.1f}H{third:.1f}v{tall:.1f}H{first:.1f}Z",
        f"M{median:.1f} {top:.1f}v{tall:.1f}",
    )


def _step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, … times a power of ten that is at least
    ``least``.
    """
    power = 10.0 ** floor(log10(least))
    return next(
        power * factor
        for factor in (1, 2, 5, 10)
        if power * factor >= least * (1 - 1e-9)
    )


def _path(x: np.ndarray, y: np.ndarray) -> str:
    return "M" + "L".join(
        f"{one:.5g} {other:.5g}" for one, other in zip(x, y, strict=True)
    )
