"""What a round of a run costs, and the whole run: seconds by phase, bytes, floats."""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcfl.report.progress import duration
from hpcfl.report.summary import Run
from hpcfl.scores._metric_name import SECONDS, MetricName

PHASES = ("round", "train", "score", "send", "gather", "aggregate", "checkpoint")
ROUND_SECONDS = MetricName("round", SECONDS)


def table(rows: Mapping[str, Sequence[Run]]) -> tuple[list[str], list[list[str]]]:
    """The headings, and for each row its label and what it costs, means over its runs.

    Floats are those of a client in a round; bytes, which only several ranks move, and
    seconds those of a round, without the first, which is slower. The phases are not all
    of a round, and those of rank 0 and of the slowest worker overlap.
    """
    headings = [
        "floats down",
        "floats up",
        "MB down",
        "MB up",
        "whole run",
        *(f"s/{phase}" for phase in PHASES),
    ]
    return headings, [[label, *_cells(runs)] for label, runs in rows.items()]


def _cells(runs: Sequence[Run]) -> list[str]:
    floats = [
        [number for run in runs if (number := getattr(run.summary, name)) is not None]
        for name in ("floats_down", "floats_up")
    ]
    megabytes = [
        [_mean(run, MetricName(name)) / 1e6 or np.nan for run in runs]
        for name in ("bytes_down", "bytes_up")
    ]
    seconds = [
        [_mean(run, MetricName(phase, SECONDS)) for run in runs] for phase in PHASES
    ]
    whole = [
        float(np.nansum(run.results.series(ROUND_SECONDS)))
        for run in runs
        if ROUND_SECONDS in run.results.names
    ]
    return [
        *(_text(of, ",.0f") for of in floats),
        *(_text(of, ",.2f") for of in megabytes),
        duration(sum(whole) / len(whole)) if whole else "–",
        *(_text(of, ".3f") for of in seconds),
    ]


def _mean(run: Run, name: MetricName) -> float:
    """The mean of a number over the rounds that were played, but for the first; NaN if
    there is none.
    """
    values = run.results.series(name).astype(float)
    later = values[run.results.played][1:]
    return (
        float(later[np.isfinite(later)].mean()) if np.isfinite(later).any() else np.nan
    )


def _text(numbers: Sequence[float], form: str) -> str:
    known = [number for number in numbers if np.isfinite(number)]
    return format(sum(known) / len(known), form) if known else "–"
