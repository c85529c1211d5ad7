"""The outcome of a tuning: files for the chosen configurations, a table, and a curve.

The curve shows the expected best score over the number of trials.
"""

import csv
import io
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table

from hpcfl.files import atomic
from hpcfl.report import configuration, metric_values
from hpcfl.report.search_spending import SPENT
from hpcfl.report.text import literal, stdout_console
from hpcfl.scores.metric_names import Measure
from hpcfl.storage import sweep_folder, tune_folder
from hpcfl.trained import loading
from hpcfl.trained.run import Run
from hpcfl.tuning import figure, halving, search_results, spending
from hpcfl.tuning.plan import Cell, Plan
from hpcfl.tuning.search_results import Choice

TABLE, CURVE, FIGURE = tune_folder.TABLE, "curve.csv", "curve.png"
MISSING = "–"


@dataclass(frozen=True)
class Tuned:
    """The outcome of a method's tuning.

    Attributes:
        method: The name of the method.
        trials: The number of configurations that were drawn.
        spent: The sample gradients of the search.
        choice: The chosen configuration; None if no run came to an end.
        untuned: The method as the file has it; None if that did not come to an end.
        curve: The expected best score on held-out samples after 1, 2 … trials.
        finals: The test scores of the chosen configuration's final runs, at the tail,
            by seed.
        finals_untuned: The same for the untuned configuration.
    """

    method: str
    trials: int
    spent: int
    choice: Choice | None
    untuned: Choice | None
    curve: list[float]
    finals: dict[int, float]
    finals_untuned: dict[int, float]


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
    finals = test_scores(plan, folder / tune_folder.FINAL)
    untuned = test_scores(plan, folder / tune_folder.UNTUNED)
    measure = measure_of(folder)
    tuned = [
        of_method(
            plan,
            folder,
            method,
            measure,
            finals.get(method, {}),
            untuned.get(method, {}),
        )
        for method in plan.section.methods
    ]
    atomic.write(folder / TABLE, table_text(plan, tuned).encode())
    atomic.write(folder / CURVE, curve_text(tuned).encode())
    _print_table(plan, tuned, measure)
    for name in (TABLE, CURVE):
        print(f"file: {folder / name}")
    if find_spec("matplotlib") is None:
        print("note: no figure, matplotlib is not installed here")
    else:
        curves = {one.method: _scores(one) for one in tuned}
        figure.write(folder / FIGURE, curves, measure)
        print(f"figure: {folder / FIGURE}")
    print(f"chosen: {folder / tune_folder.CHOSEN}")
    command = f"hpcfl table {folder} --rows method.name --at tail"
    print(f"look further: {command}", flush=True)


def of_method(
    plan: Plan,
    folder: Path,
    method: str,
    measure: Measure,
    finals: dict[int, float],
    finals_untuned: dict[int, float],
) -> Tuned:
    """Return the outcome of a method's tuning.

    measure: the measure of the primary metric. finals, finals_untuned: the test scores
    of final runs by seed.
    """
    return Tuned(
        method,
        len(plan.trials(method)),
        search_results.sum_gradients(plan, folder, method),
        search_results.choose(plan, folder, method),
        search_results.find_untuned(plan, folder, method),
        curve(plan, folder, method, measure),
        finals,
        finals_untuned,
    )


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
    return [loading.load_run(sweep / name) for name in sweep_folder.there(sweep)]


def measure_of(folder: Path) -> Measure:
    """Return the measure of the primary metric."""
    for name in sweep_folder.there(folder / tune_folder.SEARCH):
        return loading.load_run(folder / tune_folder.SEARCH / name).measure
    return Measure("accuracy", "", "accuracy", "", "up")


def table_text(plan: Plan, tuned: list[Tuned]) -> str:
    """Return the table as CSV, in full precision."""
    budget = spending.search_budget(plan)
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(
        [
            "method",
            "trials",
            "budget",
            "spent",
            SPENT,
            "rounds",
            "validation",
            "validation_untuned",
            "test",
            "test_untuned",
            "seeds",
            "setting",
        ]
    )
    for one in tuned:
        choice, untuned = one.choice, one.untuned
        writer.writerow(
            [
                one.method,
                one.trials,
                budget,
                one.spent,
                one.spent / budget,
                choice.rounds if choice else "",
                choice.score if choice else "",
                untuned.score if untuned else "",
                fmean(one.finals.values()) if one.finals else "",
                fmean(one.finals_untuned.values()) if one.finals_untuned else "",
                len(one.finals),
                choice.candidate.description if choice else "",
            ]
        )
    return lines.getvalue()


def curve_text(tuned: list[Tuned]) -> str:
    """Return the curves as CSV, a line for each method and number of trials.

    The line for 0 trials has the untuned configuration's score.
    """
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["method", "trials", "expected_best_validation"])
    for one in tuned:
        for draws, score in enumerate(_scores(one)):
            if score is not None:
                writer.writerow([one.method, draws, score])
    return lines.getvalue()


def _scores(tuned: Tuned) -> list[float | None]:
    """Return the scores on held-out samples after 0, 1, 2 … trials."""
    untuned = tuned.untuned.score if tuned.untuned else None
    return [untuned, *tuned.curve]


def _print_table(plan: Plan, tuned: list[Tuned], measure: Measure) -> None:
    budget = spending.search_budget(plan)
    table = Table(box=None, pad_edge=False)
    for title in ("method", "trials", SPENT, "rounds", "validation", "untuned"):
        table.add_column(title, justify="left" if title == "method" else "right")
    for title in ("test, tuned", "test, untuned"):
        table.add_column(title, justify="right")
    table.add_column("chosen", overflow="fold")
    for one in tuned:
        choice, untuned = one.choice, one.untuned
        table.add_row(
            literal(one.method),
            str(one.trials),
            f"{one.spent / budget:.2f}",
            str(choice.rounds) if choice else MISSING,
            measure.shown(choice.score) if choice else MISSING,
            measure.shown(untuned.score) if untuned else MISSING,
            _shown(one.finals, measure),
            _shown(one.finals_untuned, measure),
            literal(choice.candidate.description if choice else MISSING),
        )
    console = stdout_console()
    if not console.is_terminal:
        console = stdout_console(width=160)
    unit = f" ({measure.unit})" if measure.unit else ""
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
