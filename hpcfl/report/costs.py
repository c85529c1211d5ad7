"""What a round of a run costs, and the whole run: seconds by phase, bytes, floats."""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcfl.report.progress import duration
from hpcfl.report.summary import Run
from hpcfl.scores._metric_name import SECONDS, MetricName

PHASES = ("round", "train", "score", "send", "gather", "aggregate", "checkpoint")
ROUND_SECONDS = MetricName("round", SECONDS)


def table(rows: Mapping[str, Sequence[Run]]) -> tuple[list[str], list[list[str]]]:
    """What the runs of each row of a table cost, as texts.

    Floats are those that a client sends and receives in a round. Bytes, which only
    several ranks move, and seconds are means over the rounds but for the first, which
    is slower. The phases do not add up to the round, and those of rank 0 overlap with
    those of the slowest worker.

    Args:
        rows: By label the runs whose costs are averaged.

    Returns:
        The headings, and for each row its label followed by a text for each heading.
    """
    headings = ["floats down", "floats up", "MB down", "MB up", "whole run"]
    for phase in PHASES:
        headings.append(f"s/{phase}")
    lines = []
    for label, runs in rows.items():
        lines.append([label, *_cells(runs)])
    return headings, lines


def _cells(runs: Sequence[Run]) -> list[str]:
    """What the runs cost on average, in the order of the headings."""
    cells = []
    for field in ("floats_down", "floats_up"):
        floats = [getattr(run.summary, field) for run in runs]
        recorded = [count for count in floats if count is not None]
        cells.append(_mean_text(recorded, ",.0f"))
    for field in ("bytes_down", "bytes_up"):
        name = MetricName(field)
        # On a single rank no bytes are moved: that is shown as a dash, not as 0.
        megabytes = [_mean_of_rounds(run, name) / 1e6 or np.nan for run in runs]
        cells.append(_mean_text(megabytes, ",.2f"))
    cells.append(_whole_run(runs))
    for phase in PHASES:
        name = MetricName(phase, SECONDS)
        seconds = [_mean_of_rounds(run, name) for run in runs]
        cells.append(_mean_text(seconds, ".3f"))
    return cells


def _whole_run(runs: Sequence[Run]) -> str:
    """The mean duration of those runs whose rounds were timed, and are all there."""
    durations = []
    for run in runs:
        is_timed = ROUND_SECONDS in run.results.names
        if is_timed and not run.results.is_packed:
            seconds = run.results.series(ROUND_SECONDS)
            durations.append(float(np.nansum(seconds)))
    if not durations:
        return "–"
    return duration(sum(durations) / len(durations))


def _mean_of_rounds(run: Run, name: MetricName) -> float:
    """The mean of a number over the rounds that were played, but for the first; NaN if
    there is none.
    """
    values = run.results.series(name).astype(float)
    after_first = values[run.results.played][1:]
    finite = after_first[np.isfinite(after_first)]
    return float(finite.mean()) if len(finite) else np.nan


def _mean_text(numbers: Sequence[float], form: str) -> str:
    """The mean of the finite numbers in the format ``form``; a dash without any."""
    finite = [number for number in numbers if np.isfinite(number)]
    if not finite:
        return "–"
    return format(sum(finite) / len(finite), form)
