"""Draw gains in a score over the runs with a reference value of a key (FedNH, Figure 4)."""

from typing import TYPE_CHECKING

import pandas

from hpcfl.errors import UserError
from hpcfl.report import lines
from hpcfl.report.arrangement import SEEDS, arrange, make_label
from hpcfl.report.metric_values import read_value, resolve_recorded
from hpcfl.report.sheet import Sheet
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    runs: list[Run],
    sheet: Sheet,
    *,
    x: str,
    against: str,
    metric: str = "",
    at: str = "last",
) -> "Figure":
    """Draw one line per method, or per value of other keys that define rows.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        x: Key on the x axis.
        against: Reference value of the key; gains are differences for equal seeds.
        metric: Name of the metric; default the primary metric.
        at: Rounds at which the metric is read: "best", "last" or "tail".
    """
    metric = metric or runs[0].metric
    measure = resolve_recorded(runs, metric).measure
    factor = measure.factor if measure else 1
    arranged = arrange(runs)
    found = []
    for run, setting, *_ in arranged.placed:
        row = make_label(setting, [key for key in arranged.down if key != x])
        number = factor * read_value(run, metric, at).value
        seed = repr([setting.get(key) for key in SEEDS])
        found.append((row, run.summary.method, seed, setting[x], number))
    frame = pandas.DataFrame(found, columns=["row", "method", "seed", "x", "number"])
    drawn = []
    for (row, method), of_row in frame.groupby(["row", "method"], sort=False):
        table = of_row.pivot(index="seed", columns="x", values="number")
        base = float(against)
        if base not in table or table.isna().any(axis=None):
            raise UserError(
                f"--against {against}: {row} needs runs of the same seeds for each {x}, "
                "including this value"
            )
        gains = table.sub(table[base], axis=0)
        mean, deviation = gains.mean(), gains.std(ddof=1)
        line = {
            "panel": "",
            "row": row,
            "method": method,
            "x": gains.columns.astype(float),
            "mean": mean,
            "std": deviation,
            "runs": len(gains),
        }
        drawn.append(pandas.DataFrame(line))
    drawn = pandas.concat(drawn)
    sheet.notes += [*arranged.notes, lines.count_repetitions(drawn)]
    ylabel = f"gain over {x} = {against}: {lines.name_scores(arranged.runs, metric)}"
    return lines.draw(sheet, drawn, measure, xlabel=x, ylabel=ylabel)
