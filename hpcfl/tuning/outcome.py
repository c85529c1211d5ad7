"""The outcome of a tuning: files for the chosen configurations, a table, and a curve.

The curve shows the expected best score over the number of trials.
"""

import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from hpcfl.files import atomic, output
from hpcfl.report import configuration, metric_values
from hpcfl.report.search_spending import SPENT
from hpcfl.report.text import literal, stdout_console
from hpcfl.scores.metric_names import Measure
from hpcfl.storage import run_folder, tune_folder
from hpcfl.trained import loading
from hpcfl.trained.run import Run
from hpcfl.tuning import figure, halving, search_results
from hpcfl.tuning import plan as plans
from hpcfl.tuning.plan import Cell, Plan
from hpcfl.tuning.search_results import Choice

TABLE, CURVE, FIGURE = tune_folder.TABLE, "curve.csv", "curve.png"
MISSING = "–"
Row = dict[str, Any]  # a value by column of the table


def chosen_text(plan: Plan, choice: Choice) -> str:
    """Return an experiment file with a chosen configuration and the first final seed."""
    candidate = choice.candidate
    method = candidate.method
    seeds = plan.section.final_seeds
    config = plan.config(candidate, seeds[0], choice.rounds)
    trials = plan.trials(method)
    lines = [
        f"{method}, {candidate.label} of {len(trials)}: {candidate.description}",
        f"chosen by {choice.score:.6g} on held-out samples at the tail, on the "
        f"partitions of seeds {plan.section.search_seeds}",
        f"{choice.rounds} rounds are what {plan.section.budget} gradients of samples "
        "allow",
        f"the final seeds are {seeds}; partition.seed is one more than each",
    ]
    comments = "".join(f"# {line}\n" for line in lines)
    return f"{comments}\n{configuration.toml(config)}\n"


def tell(plan: Plan, folder: Path) -> None:
    """Write the table, the curve and its figure, and print the table."""
    methods = plan.section.methods
    finals = test_scores(plan, folder / run_folder.FINAL)
    untuned = test_scores(plan, folder / run_folder.UNTUNED)
    measure = measure_of(folder)
    rows, curves = [], {}
    for method in methods:
        scores = finals.get(method, {}), untuned.get(method, {})
        row = describe_method(plan, folder, method, *scores)
        rows.append(row)
        after = curve(plan, folder, method, measure)
        curves[method] = [row["validation_untuned"], *after]
    points = [
        {"method": method, "trials": draws, "expected_best_validation": score}
        for method, scores in curves.items()
        for draws, score in enumerate(scores)
        if score is not None
    ]
    _write_csv(folder / TABLE, rows)
    _write_csv(folder / CURVE, points)
    _print_table(plan, rows, [finals, untuned], measure)
    for name in (TABLE, CURVE):
        output.say(f"file: {folder / name}")
    if not output.is_quiet():
        figure.write(folder / FIGURE, curves, measure)
        output.say(f"figure: {folder / FIGURE}")
    output.say(f"chosen: {folder / tune_folder.CHOSEN}")
    command = f"hpcfl table {folder} --rows method.name --at tail"
    output.say(f"look further: {command}")


def describe_method(
    plan: Plan,
    folder: Path,
    method: str,
    finals: dict[int, float],
    finals_untuned: dict[int, float],
) -> Row:
    """Return the outcome of a method's tuning, None where a run did not come to an end.

    finals, finals_untuned: the test scores of the final runs with the chosen and the
    untuned configuration, by seed.
    """
    budget = plans.search_budget(plan)
    spent = search_results.sum_gradients(plan, folder, method)
    choice = search_results.choose(plan, folder, method)
    untuned = search_results.find_untuned(plan, folder, method)
    return {
        "method": method,
        "trials": len(plan.trials(method)),
        "budget": budget,
        "spent": spent,
        SPENT: spent / budget,
        "rounds": choice.rounds if choice else None,
        "validation": choice.score if choice else None,
        "validation_untuned": untuned.score if untuned else None,
        "test": fmean(finals.values()) if finals else None,
        "test_untuned": fmean(finals_untuned.values()) if finals_untuned else None,
        "seeds": len(finals),
        "setting": choice.candidate.description if choice else None,
    }


def _write_csv(path: Path, rows: list[Row]) -> None:
    """Write rows in full precision. Raises RunFailure."""
    import pandas

    text: str = pandas.DataFrame(rows, dtype=object).to_csv(index=False)
    atomic.write(path, text.encode())


def curve(plan: Plan, folder: Path, method: str, measure: Measure) -> list[float]:
    """Return the expected best score on held-out samples after 1, 2 … trials of a
    method.

    A trial counts with the score of its last rung. Diverged trials have no score, so
    they leave fewer trials.
    """
    ranks = []
    for candidate in plan.trials(method):
        found = []
        for seed in plan.section.search_seeds:
            last = search_results.find_last_result(plan, folder, Cell(candidate, seed))
            found.append(last)
        rank = halving.mean([one["rank"] if one else None for one in found])
        if rank is not None:
            ranks.append(rank)
    return [measure.rank(expected) for expected in halving.expected_best(ranks)]


def test_scores(plan: Plan, sweep: Path) -> dict[str, dict[int, float]]:
    """Return the test scores of a sweep's final runs at the tail, by method and seed.

    Unfinished runs are left out. Every run is read once.
    """
    seeds = set(plan.section.final_seeds)
    scores: dict[str, dict[int, float]] = {}
    for run in _runs(sweep):
        seed = int(run.config["seed"])
        if not run.summary.finished or seed not in seeds:
            continue
        number = metric_values.value(run, run.metric, "tail").value
        if math.isfinite(number):
            scores.setdefault(run.config["method"]["name"], {})[seed] = number
    return {method: dict(sorted(found.items())) for method, found in scores.items()}


def _runs(sweep: Path) -> list[Run]:
    return [loading.load_run(sweep / name) for name in run_folder.list_runs(sweep)]


def measure_of(folder: Path) -> Measure:
    """Return the measure of the primary metric."""
    for name in run_folder.list_runs(folder / run_folder.SEARCH):
        return loading.load_run(folder / run_folder.SEARCH / name).measure
    return Measure("accuracy", "", "accuracy", "", "up")


def _print_table(
    plan: Plan,
    rows: list[Row],
    finals: list[dict[str, dict[int, float]]],
    measure: Measure,
) -> None:
    """Print the outcome; finals: the test scores, tuned and untuned."""
    table = Table(box=None, pad_edge=False)
    for title in ("method", "trials", SPENT, "rounds", "validation", "untuned"):
        table.add_column(title, justify="left" if title == "method" else "right")
    for title in ("test, tuned", "test, untuned"):
        table.add_column(title, justify="right")
    table.add_column("chosen", overflow="fold")
    for row in rows:
        method, rounds = row["method"], row["rounds"]
        scores = [row["validation"], row["validation_untuned"]]
        table.add_row(
            literal(method),
            str(row["trials"]),
            f"{row[SPENT]:.2f}",
            MISSING if rounds is None else str(rounds),
            *(MISSING if one is None else measure.shown(one) for one in scores),
            *(_shown(found.get(method, {}), measure) for found in finals),
            literal(row["setting"] or MISSING),
        )
    console = stdout_console()
    if not console.is_terminal:
        console = stdout_console(width=160)
    unit = f" ({measure.unit})" if measure.unit else ""
    budget = plans.search_budget(plan)
    console.print(
        literal(
            f"{measure.score}{unit}; of {budget:,} gradients of samples for each search, "
            f"{plan.section.budget:,} for each run"
        )
    )
    console.print(table)


def _shown(scores: dict[int, float], measure: Measure) -> str:
    """Return mean ± sample standard deviation over seeds as text."""
    if not scores:
        return MISSING
    numbers = list(scores.values())
    mean = measure.shown(fmean(numbers))
    if len(numbers) < 2:
        return mean
    return f"{mean} ± {measure.shown(stdev(numbers))}"
