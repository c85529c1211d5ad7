"""What came out of a tuning: a file for each chosen configuration, a table, and the curve
of the expected best score over the number of trials.
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
from hpcfl.report import configuration, metric_values, summary
from hpcfl.report.grid import SPENT
from hpcfl.report.summary import Run
from hpcfl.report.text import literal, stdout_console
from hpcfl.scores._described import Measure
from hpcfl.storage import sweep_folder, tune_folder
from hpcfl.tuning import figure, halving, spending, standing
from hpcfl.tuning.plan import Cell, Plan
from hpcfl.tuning.standing import Choice

TABLE, CURVE, FIGURE = tune_folder.TABLE, "curve.csv", "curve.png"
MISSING = "–"


@dataclass(frozen=True)
class Tuned:
    """What a method was tuned to.

    Attributes:
        method: Which one.
        trials: How many configurations were drawn.
        spent: Gradients of samples that the search took.
        choice: None where no run came to an end.
        untuned: The method as the file has it; None where that did not come to an end.
        curve: The expected best score on held-out samples after 1, 2 … trials.
        finals: Test scores of the chosen configuration's final runs, at the tail, by
            seed.
        finals_untuned: The same of the untuned one.
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
    """An experiment file with a chosen configuration, for the first of the final seeds."""
    candidate = choice.candidate
    method = candidate.method
    seeds = plan.section.final_seeds
    config = plan.config(candidate, seeds[0], choice.rounds)
    trials = plan.trials(method)
    lines = [
        f"{method}, {candidate.label} of {len(trials)}: {candidate.said}",
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
    """What a method was tuned to, from the files of its search and the test scores of
    its final runs by seed.

    measure: what the number that counts measures.
    """
    return Tuned(
        method,
        len(plan.trials(method)),
        standing.spent(plan, folder, method),
        standing.chosen(plan, folder, method),
        standing.untuned(plan, folder, method),
        curve(plan, folder, method, measure),
        finals,
        finals_untuned,
    )


def curve(plan: Plan, folder: Path, method: str, measure: Measure) -> list[float]:
    """The expected best score on held-out samples after 1, 2 … trials of a method.

    A trial counts with the score of the last rung that it was played in: what it would
    have come to by more rounds nobody knows. Those that diverged have none and leave
    fewer trials.
    """
    ranks = []
    for candidate in plan.trials(method):
        found = []
        for seed in plan.section.search_seeds:
            last = standing.last_result(plan, folder, Cell(candidate, seed))
            found.append(last)
        rank = halving.mean([one["rank"] if one else None for one in found])
        if rank is not None:
            ranks.append(rank)
    return [measure.rank(expected) for expected in halving.expected_best(ranks)]


def test_scores(plan: Plan, sweep: Path) -> dict[str, dict[int, float]]:
    """The test scores of a sweep's final runs at the tail, by method and seed; those
    that did not come to an end are left out. Every run is read once.
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
    return [summary.load(sweep / name) for name in sweep_folder.there(sweep)]


def measure_of(folder: Path) -> Measure:
    """What the number that counts measures."""
    for name in sweep_folder.there(folder / tune_folder.SEARCH):
        return summary.load(folder / tune_folder.SEARCH / name).measure
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
                choice.candidate.said if choice else "",
            ]
        )
    return lines.getvalue()


def curve_text(tuned: list[Tuned]) -> str:
    """The curves as CSV: a line for each method and number of trials; of 0 trials it is
    the untuned configuration's score.
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
    """The scores on held-out samples after 0, 1, 2 … trials."""
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
            literal(choice.candidate.said if choice else MISSING),
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
    """Mean ± sample standard deviation over seeds."""
    if not scores:
        return MISSING
    numbers = list(scores.values())
    mean = measure.shown(fmean(numbers))
    if len(numbers) < 2:
        return mean
    return f"{mean} ± {measure.shown(stdev(numbers))}"
