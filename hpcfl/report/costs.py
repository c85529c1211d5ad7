"""What a round of a run costs, and the whole run: seconds by phase, bytes, floats."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from hpcfl.report.progress import duration
from hpcfl.report.summary import Run
from hpcfl.scores._metric_name import SECONDS, MetricName

PHASES = ("round", "train", "score", "send", "gather", "aggregate", "checkpoint")
MEGABYTE = 1e6  # bytes
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
    for floats in (
        [run.summary.floats_down for run in runs],
        [run.summary.floats_up for run in runs],
    ):
        recorded = [count for count in floats if count is not None]
        cells.append(_mean_text(recorded, ",.0f"))
    for field in ("bytes_down", "bytes_up"):
        of_runs = _means_of_rounds(runs, MetricName(field))
        # On a single rank no bytes are moved: that is shown as a dash, not as 0.
        megabytes = [of_run / MEGABYTE for of_run in of_runs if of_run > 0]
        cells.append(_mean_text(megabytes, ",.2f"))
    cells.append(_whole_run(runs))
    for phase in PHASES:
        seconds = _means_of_rounds(runs, MetricName(phase, SECONDS))
        cells.append(_mean_text(seconds, ".3f"))
    return cells


def _whole_run(runs: Sequence[Run]) -> str:
    """The mean duration of those runs whose rounds were timed, and are all there."""
    durations = []
    for run in runs:
        results = run.results
        if ROUND_SECONDS in results.names and not results.is_packed:
            seconds = results.series(ROUND_SECONDS)
            durations.append(np.nansum(seconds))
    if not durations:
        return "–"
    return duration(fmean(durations))


def _means_of_rounds(runs: Sequence[Run], name: MetricName) -> list[float]:
    """The mean of a number over the rounds that were played, but for the first, of each
    run that has it.
    """
    means = []
    for run in runs:
        results = run.results
        values = results.series(name).astype(float)
        played = values[results.played]
        after_first = played[1:]
        finite = after_first[np.isfinite(after_first)]
        if len(finite):
            means.append(float(finite.mean()))
    return means


def _mean_text(numbers: Sequence[float], form: str) -> str:
    """The mean in the format ``form``; a dash without any numbers."""
    if not numbers:
        return "–"
    return format(fmean(numbers), form)
