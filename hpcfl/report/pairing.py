"""Rows of a table against each other, on the same clients of the same repetitions.

A pair is a client in a repetition, so what is found holds for these very federations;
of others, with other partitions, ``comparison.py`` speaks.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcfl.errors import UserError
from hpcfl.report.reading import At, counts_of, of_clients, own_column
from hpcfl.report.significance import LEVEL, Comparison, compare
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure


def note(
    rows: Mapping[str, Sequence[Run]],
    column: str,
    measure: Measure,
    at: At,
    where: str,
) -> str:
    """A line on which rows cannot be told from the best.

    where: what to call the table's column; the other arguments are those of
        ``compared``.
    """
    try:
        comparison = compared(rows, column, measure, at)
    except UserError as error:
        return f"{where}: not tested, {error}"
    names = comparison.names
    best = max(names, key=lambda name: measure.rank(comparison.mean(name)))
    others = {name: comparison.between(name, best) for name in names if name != best}
    alike = [f"{name} (p = {p:.2g})" for name, p in others.items() if p >= LEVEL]
    if alike:
        outcome = f"{best} cannot be told from {', '.join(alike)}"
    else:
        outcome = f"{best} is best, p ≤ {max(others.values()):.2g}"
    comparisons = len(names) * (len(names) - 1) // 2
    return (
        f"{where}: on these federations {outcome} (at the level {LEVEL}: Wilcoxon's signed-rank test on "
        f"{comparison.pairs} pairs of client and seed taken as independent, Holm's "
        f"correction for {comparisons} comparisons)"
    )


def compared(
    rows: Mapping[str, Sequence[Run]], column: str, measure: Measure, at: At
) -> Comparison:
    """All rows of one column of a table against each other.

    Args:
        rows: By label the runs of a row, in the same order of seeds in all rows.
        column: Of the models, as for ``own_column``: "" for the one that counts in each
            run.
        measure: What is compared, each client's own number of its score.
        at: As in ``sweep_table.Reading``.

    Raises:
        UserError: Where there is nothing to compare.
    """
    if len(rows) < 2:
        raise UserError("there is one row only")
    for repetition in zip(*rows.values(), strict=True):
        counts = [counts_of(run, "test") for run in repetition]
        if not all(np.array_equal(of_run, counts[0]) for of_run in counts):
            raise UserError("the rows have not the same clients")
    values = {}
    for label, runs in rows.items():
        of_runs = [
            of_clients(run, own_column(run, column), measure, at) for run in runs
        ]
        values[label] = np.concatenate(of_runs)
    known = np.isfinite(np.stack(list(values.values()))).all(axis=0)
    if not known.any():
        raise UserError("no client has a number in every row")
    return compare({label: numbers[known] for label, numbers in values.items()})
