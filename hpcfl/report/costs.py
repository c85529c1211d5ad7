"""What a round of a run costs, and the whole run: seconds by phase, bytes, floats."""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcfl.report.progress import duration
from hpcfl.report.summary import Run

PHASES = ("round", "train", "score", "send", "gather", "aggregate", "checkpoint")


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
    cells = []
    for name in ("floats_down", "floats_up"):
        floats = [getattr(run.summary, name) for run in runs]
        cells.append(_text([of for of in floats if of is not None], ",.0f"))
    for name in ("bytes_down", "bytes_up"):
        # without several ranks nothing is moved
        megabytes = [_mean(run, name) / 1e6 or np.nan for run in runs]
        cells.append(_text(megabytes, ",.2f"))
    cells.append(_whole_run(runs))
    for phase in PHASES:
        seconds = [_mean(run, f"seconds/{phase}") for run in runs]
        cells.append(_text(seconds, ".3f"))
    return cells


def _whole_run(runs: Sequence[Run]) -> str:
    """The mean time of a run, as text."""
    recorded = [run.results.values.get("seconds/round") for run in runs]
    wholes = [float(np.nansum(rounds)) for rounds in recorded if rounds is not None]
    return duration(sum(wholes) / len(wholes)) if wholes else "–"


def _mean(run: Run, name: str) -> float:
    """The mean of a number over the rounds that were played, but for the first; NaN if
    there is none.
    """
    recorded = run.results.values.get(name)
    if recorded is None:
        return np.nan
    later = recorded[run.results.played][1:].astype(float)
    known = later[np.isfinite(later)]
    return float(known.mean()) if known.size else np.nan


def _text(numbers: Sequence[float], form: str) -> str:
    known = [number for number in numbers if np.isfinite(number)]
    return format(sum(known) / len(known), form) if known else "–"
