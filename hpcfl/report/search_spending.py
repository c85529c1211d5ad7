"""The share of its budget that the search behind a tuned run has spent."""

import csv
import math

from hpcfl.files import untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.files.file_names import make_file_name
from hpcfl.report.arrangement import SEARCH, Arrangement
from hpcfl.report.table_formats import MISSING
from hpcfl.storage import run_folder, tune_folder
from hpcfl.trained.run import Run

SEARCHES = "searches"  # heading of the column with the number of searches


def find_shares(arranged: Arrangement) -> dict[str, float]:
    """Return spent/budget of the search that chose the configuration of each row.

    Returns:
        Share by row; NaN if it is unknown or differs between the runs of a row. The
        mapping is empty if no run belongs to a tuning.
    """
    shares: dict[str, set[float | None]] = {}
    for placed in arranged.placed:
        shares.setdefault(placed.row, set()).add(_find_share(placed.run))
    if set.union(*shares.values()) == {None}:
        return {}
    found = {}
    for row, of_row in shares.items():
        share = of_row.pop()
        found[row] = math.nan if of_row or share is None else share
    return found


def count_searches(arranged: Arrangement) -> dict[str, int]:
    """Return the number of searches that chose the configurations of each row.

    The mapping is empty if no row has several searches.
    """
    searches: dict[str, set[int]] = {}
    for placed in arranged.placed:
        searches.setdefault(placed.row, set()).add(placed.setting.get(SEARCH, 0))
    counts = {row: len(of_row) for row, of_row in searches.items()}
    return counts if max(counts.values()) > 1 else {}


def write_share(share: float) -> str:
    """Return the share of a search as text, a dash if it is unknown."""
    return MISSING if math.isnan(share) else f"{share:.2f}"


def _find_share(run: Run) -> float | None:
    """Return the share of one run; None if the run is not a final run of a tuning."""
    sweep = run.folder.parent
    if sweep.name != run_folder.FINAL or not run_folder.is_tuning(sweep.parent):
        return None
    table = sweep.parent / tune_folder.TABLE
    try:
        text = untrusted_files.read_bytes(table, untrusted_files.JSON_LIMIT).decode()
        method = run.label.partition(",")[0]
        spent = budget = 0.0
        for line in csv.DictReader(text.splitlines()):
            if make_file_name(line["method"]) == method:
                spent += float(line["spent"])
                budget += float(line["budget"])
        share = spent / budget
    except (
        FileNotFoundError,
        Damaged,
        # a file of another program
        ValueError,
        KeyError,
        TypeError,
        ZeroDivisionError,
        csv.Error,
    ):
        return math.nan
    return share if math.isfinite(share) else math.nan
