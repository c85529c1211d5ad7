"""Gain of each client over a reference, such as local training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcfl.errors import UserError
from hpcfl.files.wording import list_first
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
    """Draw a row for each method except the reference, the best mean gain at the top.

    A vertical line marks a gain of 0.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        metric: Name of a per-client score; default the primary metric.
        at: Rounds at which the score is read: "best", "last" or "tail".
        group: Keys that define a row; default the method.
        against: Label or first word of the reference row.

    Raises:
        UserError: If no row is called ``against``.
    """
    scores = clients.read_rows(runs, sheet, Reading(metric, at), group)
    reference = find_row(against, list(scores.methods))
    gains = find_gains(scores, reference)
    sheet.notes.append(
        f"a dot is the gain of a client over {against} in {scores.label}, "
        f"{scores.moment}; clients left of the line lose; a box spans the middle half "
        "of the clients"
    )
    unit = "points" if gains.measure.is_percent else gains.measure.unit
    unit = f" ({unit})" if unit else ""
    label = f"gain in {gains.measure.score} over {against}{unit}"
    sheet.notes += list_left_out(scores, gains, reference)
    figure = clients.draw(sheet, gains, label)
    for place in figure.axes:
        place.axvline(0, color="black", linewidth=0.8, linestyle=":")
    return figure


def find_gains(scores: Rows, reference: str) -> Rows:
    """Return the gains of each row over the reference row of its panel.

    Only repetitions of both rows count. Rows without a common repetition are left out.

    Args:
        scores: Scores of the clients.
        reference: Label of the reference row.

    Raises:
        UserError: If no other row has the same clients.
    """
    numbers = scores.numbers
    alone = numbers[numbers["row"] == reference]
    others = numbers[numbers["row"] != reference]
    same = ["panel", "seed", "partition", "client"]
    pairs = others.merge(alone[[*same, "number"]], on=same, suffixes=("", "_alone"))
    if pairs.empty:
        raise UserError(f"--against {reference}: no other row has the same clients")
    sign = scores.measure.orient(1.0)
    gains = pairs.assign(number=sign * (pairs["number"] - pairs["number_alone"]))
    return replace(scores, numbers=clients.sort_rows(gains, 1.0))


def list_left_out(scores: Rows, gains: Rows, reference: str) -> list[str]:
    """Return a note for each panel with rows that have no gain.

    Args:
        scores: Scores of the clients.
        gains: Gains over the reference row.
        reference: Label of the reference row.
    """
    notes = []
    for panel, rows in scores.panels.items():
        drawn = gains.panels.get(panel, {})
        missing = [row for row in rows if row not in drawn and row != reference]
        if missing:
            place = f"{panel}: " if panel else ""
            notes.append(
                f"{place}{list_first(missing)}: left out, no run of {reference} has the "
                "same clients and seed"
            )
    return notes
