"""``hpcfl show``: the results of a run, or of each run of a sweep, for a terminal."""

import shlex
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from hpcfl.report.metric_values import VALIDATION, where_scored
from hpcfl.report.text import (
    clients_text,
    literal,
    plain,
    stdout_console,
    warn_of_other_clients,
)
from hpcfl.scores.metric_names import CLIENTS, MetricName, name_held_out
from hpcfl.storage.metrics import AFTER, BEFORE
from hpcfl.trained.loading import is_sweep, list_runs
from hpcfl.trained.run import Run

LEGEND = (
    "{score}{unit} before and after local training, on test samples. ▸ primary metric: its "
    "best round is chosen on {best_by} samples. last: the last round; tail: mean of the last "
    "tenth of them. More: hpcfl show --explain"
)
EXPLANATION = """\
before, after: models before and after local training, on the clients' own test
samples, in the best round of the primary metric (▸), or the latest before it that
has them; the scoring after the last aggregation counts as the last round.
validation: the same in the best round on samples that training.validation held
out: to choose settings by, such as training.lr.
last, tail: the primary metric in the last round, and its mean over the last tenth.
new, tuned: clients that were never trained with, and after a training of their own.
accuracy is of all samples, another score its mean over clients; mean (std), worst
tenth: over as many clients as in "of"; floats: to and from a client in a round.
state: a checksum of all that the server and the clients hold after the last round;
two runs with the same one ended with the same models, bit for bit."""
WIDTH = 80  # letters of a line of these texts


def show(
    folder: Path,
    runs: list[Run] | None = None,
    explain: bool = False,
) -> None:
    """Print notes, table and legend for a run's or a sweep's folder.

    Args:
        folder: The run's or the sweep's.
        runs: What ``list_runs`` gave for it, if that was called already.
        explain: Whether to print the long explanation.

    Raises:
        UserError: There is no run.
    """
    console = stdout_console()
    runs = runs or list_runs(folder)
    notes = [f"note: {note}" for run in runs for note in run.notes]
    clients = {run.label: _clients(run, run.score, "best") for run in runs}
    warning = warn_of_other_clients(clients)
    after = [f"note: {warning}"] if warning else []
    if not is_sweep(folder, runs):
        after.append(f"state: {_state(runs[0])}")
    if explain:
        after.append(f"cite: hpcfl show {shlex.quote(str(folder))} --bibtex")
    for note in notes:
        console.print(literal(note), soft_wrap=True)
    console.print(table(best_first(runs)))
    description = EXPLANATION if explain else legend(runs)
    console.print(Text(description), style="dim", soft_wrap=True)
    for line in after:
        console.print(literal(line), soft_wrap=True)


def as_json(folder: Path) -> dict[str, Any]:
    """Return the summary of a run, or those of a sweep's runs by name, for ``--json``."""
    runs = list_runs(folder)
    if is_sweep(folder, runs):
        return {run.label: asdict(run.summary) for run in runs}
    return asdict(runs[0].summary)


def _state(run: Run) -> str:
    """Describe the digest of a run's last state, or why there is none."""
    if run.status.checkpoints_lost:
        return "lost, its checkpoints are damaged"
    if run.summary.digest:
        return f"{run.summary.digest} (checksum of all models)"
    return "not kept" if run.summary.finished else "no checkpoint yet"


def best_first(runs: list[Run]) -> list[Run]:
    """Sort runs by the primary metric in their best round, runs without one last."""

    def order(run: Run) -> tuple[bool, float]:
        best = run.summary.best
        if best is None:
            return True, 0.0
        return False, -run.measure.rank(best[run.score])

    return sorted(runs, key=order)


def legend(runs: list[Run]) -> str:
    """Describe the table's numbers in a few lines."""
    unit = runs[0].measure.unit
    best_by = " or ".join(dict.fromkeys(run.summary.best_by for run in runs))
    text = LEGEND.format(
        score=plain(_scores_of(runs)),
        unit=f" in {plain(unit)}" if unit else "",
        best_by=best_by,
    )
    return textwrap.fill(text, WIDTH)


def _scores_of(runs: list[Run]) -> str:
    """Return the names of the runs' primary scores, mostly one."""
    return " / ".join(dict.fromkeys(run.measure.score for run in runs))


def table(runs: list[Run]) -> Table:
    """Return a table of the runs in the given order: the models before and after local training at the
    best round, those that count on held-out samples, then in the last round and in the
    last tenth of the rounds.
    """
    overview = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    overview.add_column("run", overflow="fold")
    overview.add_column("models", no_wrap=True)
    # The heading is narrow, so that the runs' names have room: a line for each word, and
    # of a user's own score, module:Class, the class alone.
    words = _scores_of(runs).rpartition(":")[2].split("_")
    score = Text("_\n").join(map(literal, words))
    for heading in (score, "mean (std)", "worst", "at", "of", "floats", "s/round"):
        overview.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        lines = []
        for name, column, at in _lines(run):
            lines.append((name, *list_numbers(run, column, at)))
        cells = ["\n".join(texts) for texts in zip(*lines, strict=True)]
        floats_down = _number(run.summary.floats_down, ",.0f")
        floats_up = _number(run.summary.floats_up, ",.0f")
        overview.add_row(
            _title(run),
            *cells,
            f"{floats_down} ↓\n{floats_up} ↑",
            _number(run.summary.seconds_per_round, ".3f"),
            end_section=True,
        )
    return overview


def _title(run: Run) -> Text:
    """Return the run's name and method, with its rounds if it is not finished."""
    summary = run.summary
    named = summary.method in run.label
    title = literal(run.label if named else f"{run.label} {summary.method}")
    if not summary.finished:
        title.append(f"\n{summary.rounds} of {run.config['rounds']}")
    return title


def _lines(run: Run) -> list[tuple[str, str, str]]:
    """Return the name of each line of a run, its column of models, and its rounds."""
    optional = {
        VALIDATION: (name_held_out(run.score), "best"),
        "new": (BEFORE, "last"),
        "tuned": (AFTER, "last"),
    }
    lines = {
        "before": ("pre", "best"),
        "after": ("post", "best"),
        "last": (run.score, "last"),
        "tail": (run.score, "tail"),
    }
    for name, (column, at) in optional.items():
        if MetricName(run.metric, column) in run.results.names:
            lines[name] = column, at
    return [
        (f"{'▸' if place == (run.score, 'best') else ' '}{name}", *place)
        for name, place in lines.items()
    ]


def list_numbers(run: Run, column: str, at: str) -> tuple[str, str, str, str, str]:
    """Return the texts of a column: its score, the mean over clients with the population's
    standard deviation in brackets, the worst tenth, the rounds, the number of clients.
    """
    positions = where_scored(run, column, at)
    if not positions:
        return "–", "–", "–", "–", "–"
    described = run.scores.get(run.measure.score)
    numbers = described["recorded"] if described else {"": run.metric}

    def write(kind: str) -> str:
        name = MetricName(numbers.get(kind, ""), column)
        if name not in run.results.names:
            return "–"
        return run.measure.shown(run.results.series(name)[positions].mean())

    # what comes after the last aggregation counts as the last round
    played = np.minimum(run.results.rounds, run.config["rounds"])
    rounds = dict.fromkeys(played[[positions[0], positions[-1]]].tolist())
    return (
        write(next(iter(numbers))),
        f"{write('mean')} ({write('std')})",
        write("worst_tenth"),
        "–".join(map(str, rounds)),
        _clients(run, column, at) or "–",
    )


def _clients(run: Run, column: str, at: str) -> str:
    """Return the number of clients of a column; "" where it is not recorded."""
    clients = run.results.series(MetricName(CLIENTS, column))
    return clients_text(clients[where_scored(run, column, at)].tolist())


def _number(value: float | None, form: str) -> str:
    """Format a number by ``form``; a dash where there is none."""
    return "–" if value is None else format(value, form)
