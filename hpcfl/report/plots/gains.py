"""Each client's gain over a reference, such as training alone: the clients that a method
helps, and those that it hurts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcfl.errors import UserError
from hpcfl.report.comparison import find_row
from hpcfl.report.metric_values import Reading
from hpcfl.report.plots import clients
from hpcfl.report.plots.clients import Rows
from hpcfl.report.sheet import Sheet
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plugin(
    runs: list[Run],
    sheet: Sheet,
    *,
    metric: str = "",
    at: str = "best",
    group: Sequence[str] = (),
    against: str = "local",
) -> "Figure":
    """Draw a row for each method but the reference, the best mean gain on top, with a
    line where a client gains nothing.

    Raises UserError where no row is called ``against``.
    """
    scores = clients.read_rows(runs, sheet, Reading(metric, at), group)
    gains = find_gains(scores, against)
    sheet.notes.append(
        f"a dot is a client's own number less that under {against}, {scores.moment}; "
        "left of the line it is worse off; a box has the middle half of the clients"
    )
    unit = "points" if gains.measure.is_percent else gains.measure.unit
    unit = f" ({unit})" if unit else ""
    label = f"gain in {gains.measure.score} over {against}{unit}"
    figure = clients.draw(sheet, gains, label)
    for place in figure.axes:
        place.axvline(0, color="black", linewidth=0.8, linestyle=":")
    return figure


def find_gains(scores: Rows, against: str) -> Rows:
    """Return the gains of each row over the one called ``against`` in its panel, in the
    repetitions that both have; rows without any are left out.

    Raises UserError where no panel has such a row, or no client beside it.
    """
    reference = find_row(against, list(scores.methods))
    numbers = scores.numbers
    alone = numbers[numbers["row"] == reference]
    others = numbers[numbers["row"] != reference]
    same = ["panel", "seed", "client"]
    pairs = others.merge(alone[[*same, "number"]], on=same, suffixes=("", "_alone"))
    if pairs.empty:
        raise UserError(f"--against {against}: no other row has the same clients")
    sign = scores.measure.rank(1.0)
    gains = pairs.assign(number=sign * (pairs["number"] - pairs["number_alone"]))
    return replace(scores, numbers=clients.sort_rows(gains, 1.0))
