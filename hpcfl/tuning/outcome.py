"""Outcome of a tuning: chosen configurations, a table and a curve as files.

The curve shows the expected best score over the number of trials. At 0 trials it has the
score of the untuned configuration.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hpcfl.files import atomic, output
from hpcfl.report import configuration, metric_values
from hpcfl.report.text import literal, make_console
from hpcfl.scores.metric_names import Measure
from hpcfl.storage import run_folder, tune_folder
from hpcfl.storage.tune_folder import SPENT
from hpcfl.trained import loading
from hpcfl.tuning import halving
from hpcfl.tuning import plan as plans
from hpcfl.tuning.plan import Candidate, Cell, TuningPlan
from hpcfl.tuning.search_results import Choice, SearchResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE, CURVE, FIGURE = tune_folder.TABLE, "curve.csv", "curve.png"
MISSING = "–"
Row = dict[str, Any]  # values by column of the table


def write_chosen(plan: TuningPlan, choice: Choice) -> str:
    """Return an experiment file with a chosen configuration and the first final seed."""
    candidate = choice.candidate
    method = candidate.method
    seeds = plan.section.final_seeds
    config = plan.make_final_config(candidate, seeds[0], choice.rounds)
    trials = plan.list_trials(method)
    lines = [
        f"{method}, {candidate.label} of {len(trials)}: {candidate.description}",
        f"chosen by {choice.score:.6g} on held-out samples at the tail, on the "
        f"partitions of seeds {plan.section.search_seeds}",
        f"{choice.rounds} rounds fit the budget of {plan.section.budget} sample "
        "gradients",
        f"the final seeds are {seeds}; partition.seed is one more than each",
    ]
    comments = "".join(f"# {line}\n" for line in lines)
    return f"{comments}\n{configuration.write_toml(config)}\n"


def write_outcome(plan: TuningPlan, folder: Path) -> None:
    """Write the table, the curve and its figure, and print the table.

    Args:
        plan: Plan of the tuning.
        folder: Folder of the tuning.
    """
    tested = read_test_scores(folder)
    measure = find_measure(folder)
    rows: list[Row] = []
    curves: dict[str, list[float | None]] = {}
    points: list[Row] = []
    for method in plan.section.methods:
        of_searches = []
        for one in plan.searches:
            search = SearchResults(one, folder)
            row = describe_method(search, method, tested)
            rows.append(row)
            after = expect_best(search, method, measure)
            of_searches.append([row["validation_untuned"], *after])
        curves[method] = _average(of_searches)
        points += [
            {"method": method, "trials": draws, "expected_best_validation": score}
            for draws, score in enumerate(curves[method])
            if score is not None
        ]
    _write_csv(folder / TABLE, rows)
    _write_csv(folder / CURVE, points)
    _print_table(plan, rows, tested, measure)
    written = [TABLE, CURVE]
    if plan.section.searches > 1:
        from hpcfl.tuning import searches  # loads pandas

        searches.write_searches(plan, folder, tested, measure)
        written.append(searches.TABLE)
    for name in written:
        output.say(f"file: {folder / name}")
    if points and not output.is_quiet():
        from hpcfl.report import figures  # loads pandas

        figures.write(folder / FIGURE, lambda: draw_curve(points, measure))
        output.say(f"figure: {folder / FIGURE}")
    output.say(f"chosen: {folder / tune_folder.CHOSEN}")
    has_columns = any(plan.find_column(method) for method in plan.section.methods)
    keys = "method.name,evaluation.score" if has_columns else "method.name"
    place = shlex.quote(str(folder))
    output.say(f"more: hpcfl table {place} --rows {keys} --at tail")


def draw_curve(points: Sequence[Row], measure: Measure) -> "Figure":
    """Draw the curve with a line for each method.

    Args:
        points: Rows of the file of the curve.
        measure: Measure of the primary metric.
    """
    from pandas import DataFrame

    from hpcfl.report.figures import PAGE
    from hpcfl.report.plots import curves
    from hpcfl.report.sheet import Sheet

    curve = DataFrame(points)
    drawn = DataFrame(
        {
            "panel": "",
            "row": curve["method"],
            "method": curve["method"],
            "x": curve["trials"],
            "mean": measure.factor * curve["expected_best_validation"],
            "runs": 1,
        }
    )
    ylabel = f"expected best validation {measure.name}{measure.label_end}"
    axis = "trials; 0: untuned"
    return curves.draw(Sheet(PAGE), drawn, measure, x=axis, ylabel=ylabel)


def _average(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of the searches' curves up to the length of the shortest.

    The mean is None where a curve has no score.
    """
    return [halving.compute_mean(scores) for scores in zip(*curves, strict=False)]


def describe_method(
    search: SearchResults, method: str, tested: Mapping[str, float]
) -> Row:
    """Return the outcome of a method's search as a row of the table.

    Args:
        search: Search.
        method: Entry of ``tune.methods``.
        tested: Test scores of final runs by name, as ``read_test_scores`` returns them.

    Returns:
        Values by column; None if the run that gives a value has no score.
    """
    plan = search.plan
    section, budget = plan.section, plans.count_search_budget(plan)
    spent, scoring = search.sum_gradients(method)
    choice, untuned = search.choose(method), search.find_untuned(method)
    finals = list_final_scores(plan, plan.make_tuned(method), tested)
    finals_untuned = list_final_scores(plan, plan.make_untuned(method), tested)
    number = {"search": plan.number} if section.searches > 1 else {}
    row = {
        "method": method,
        **number,
        "trials": len(plan.list_trials(method)),
        "budget": budget,
        "spent": spent,
        SPENT: spent / budget,
        "rounds": choice.rounds if choice else None,
        "validation": choice.score if choice else None,
        "validation_untuned": untuned.score if untuned else None,
        "test": fmean(finals) if finals else None,
        "test_untuned": fmean(finals_untuned) if finals_untuned else None,
        "seeds": len(finals),
        "setting": choice.candidate.description if choice else None,
    }
    if section.is_capped:
        row["scoring"] = scoring
    return row


def _write_csv(path: Path, rows: list[Row]) -> None:
    """Write rows in full precision. Raises RunFailure if the file cannot be written."""
    import pandas

    text: str = pandas.DataFrame(rows, dtype=object).to_csv(index=False)
    atomic.write(path, text.encode())


def expect_best(search: SearchResults, method: str, measure: Measure) -> list[float]:
    """Return the expected best score on held-out samples after 1, 2 … trials.

    A trial has the score of its last rung. Diverged trials have no score and do not
    count.

    Args:
        search: Search.
        method: Entry of ``tune.methods``.
        measure: Measure of the primary metric.
    """
    oriented = []
    for candidate in search.plan.list_trials(method):
        found = []
        for seed in search.plan.section.search_seeds:
            found.append(search.find_last(Cell(candidate, seed)))
        mean = halving.compute_mean([one["rank"] if one else None for one in found])
        if mean is not None:
            oriented.append(mean)
    return [measure.orient(expected) for expected in halving.expect_best(oriented)]


def read_test_scores(folder: Path) -> dict[str, float]:
    """Return the test score of each finished final run at the tail, by name."""
    scores = {}
    for sweep in (run_folder.FINAL, run_folder.UNTUNED):
        for name in run_folder.list_runs(folder / sweep):
            run = loading.load_run(folder / sweep / name)
            if not run.summary.finished:
                continue
            number = metric_values.read_value(run, run.metric, "tail").value
            if math.isfinite(number):
                scores[name] = number
    return scores


def list_final_scores(
    plan: TuningPlan, candidate: Candidate, tested: Mapping[str, float]
) -> list[float]:
    """Return the test scores of a candidate's final runs, in the order of the seeds."""
    cells = [Cell(candidate, seed) for seed in plan.section.final_seeds]
    return [tested[cell.name] for cell in cells if cell.name in tested]


def find_measure(folder: Path) -> Measure:
    """Return the measure of the tuning's primary metric."""
    for name in run_folder.list_runs(folder / run_folder.SEARCH):
        return loading.load_run(folder / run_folder.SEARCH / name).measure
    return Measure("accuracy", "", "accuracy")


def _print_table(
    plan: TuningPlan, rows: list[Row], tested: Mapping[str, float], measure: Measure
) -> None:
    """Print the outcome. ``tested``: test scores as from ``read_test_scores``."""
    numbered = ["search"] if plan.section.searches > 1 else []
    scored = ("validation", "untuned", "test, tuned", "test, untuned")
    columns = ("method", *numbered, "trials", SPENT, "rounds", *scored, "chosen")
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    table.columns[-1].overflow = "fold"
    seeds = len(plan.section.final_seeds)
    for row in rows:
        method, rounds = row["method"], row["rounds"]
        scores = [row["validation"], row["validation_untuned"]]
        search = plan.searches[row.get("search", 0)]
        finals = [
            list_final_scores(search, candidate, tested)
            for candidate in (search.make_tuned(method), search.make_untuned(method))
        ]
        table.add_row(
            literal(method),
            *(str(row[name]) for name in numbered),
            str(row["trials"]),
            f"{row[SPENT]:.2f}",
            MISSING if rounds is None else str(rounds),
            *(MISSING if one is None else measure.format(one) for one in scores),
            *(write_scores(found, seeds, measure) for found in finals),
            literal(row["setting"] or MISSING),
        )
    console = make_console(160)
    budget = plans.count_search_budget(plan)
    paid = "training" if plan.section.is_capped else "samples"
    title = (
        f"{measure.name}{measure.label_end}; budget of {budget:,} gradients of {paid} for each search, "
        f"{plan.section.budget:,} for each run"
    )
    console.print(literal(title), table, sep="\n")


def write_scores(numbers: list[float], seeds: int, measure: Measure) -> str:
    """Return mean ± sample standard deviation as text, with the number of runs if some
    of the ``seeds`` have no score.
    """
    if not numbers:
        return MISSING
    text = measure.format(fmean(numbers))
    if len(numbers) > 1:
        text += f" ± {measure.format(stdev(numbers))}"
    return f"{text} ({len(numbers)})" if len(numbers) < seeds else text
