"""The share of its budget that the search behind a run took, for tables of tuned runs."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from hpcfl.files import untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage import tune_folder
from hpcfl.trained.run import Run


def find_share(runs: Sequence[Run]) -> float | None:
    """Return the spent/budget of the search that chose the configuration of runs.

    It is None for runs that no tuning has played, and NaN where it is not known or not
    the same for all.
    """
    found = [_find_own(run) for run in runs]
    if all(share is None for share in found):
        return None
    first = found[0]
    same = first is not None and all(share == first for share in found)
    return first if same else math.nan


def _find_own(run: Run) -> float | None:
    """Return the share of one run, None where it is no final run of a tuning."""
    sweep = run.folder.parent
    if sweep.name != tune_folder.FINAL or not tune_folder.is_tuning(sweep.parent):
        return None
    return _recorded(sweep.parent / tune_folder.TABLE, run.summary.method)


def _recorded(table: Path, method: str) -> float:
    """Return the share in a tuning's table, NaN where it has none."""
    try:
        text = untrusted_files.read_bytes(table, untrusted_files.JSON_LIMIT).decode()
        lines = {line["method"]: line for line in csv.DictReader(text.splitlines())}
        share = float(lines[method]["spent"]) / float(lines[method]["budget"])
    except (FileNotFoundError, Damaged):
        return math.nan
    except (ValueError, KeyError, TypeError, ZeroDivisionError, csv.Error):
        return math.nan  # another's file
    return share if math.isfinite(share) else math.nan
