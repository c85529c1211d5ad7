"""``hpcfl show``: the results of a run, or of each run of a sweep, on a terminal."""

import shlex
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from hpcfl.report.metric_values import VALIDATION, count_clients, find_scored
from hpcfl.report.text import (
    escape,
    format_clients,
    literal,
    make_console,
    warn_of_other_clients,
)
from hpcfl.scores.metric_names import MetricName, name_held_out
from hpcfl.storage.metrics import AFTER, BEFORE
from hpcfl.trained.loading import is_sweep, list_runs
from hpcfl.trained.run import Run

LEGEND = (
    "{scores} before and after local training, on test samples. ▸ primary metric; its "
    "best round is chosen on {best_by} samples. last: the last round; tail: mean of the last "
    "tenth; end: after the last round. More: hpcfl show --explain"
)
EXPLANATION = """\
before, after: models before and after local training, on the clients' test samples.
They are read in the best round of the primary metric (▸), or in the latest earlier
round that scored them. "before" in round 3 are the models after two aggregations.
end: the models after the last aggregation of R rounds, recorded as round R + 1.
Another column of evaluation.score, such as global, has a line with its name.
validation: the same at the best round on samples held out by training.validation;
choose settings such as training.lr by this number.
last, tail: the primary metric in the last round, and its mean over the last tenth.
new, tuned: clients that never trained, before and after their first local training.
accuracy is over all samples, other scores are means over clients; mean (std) and
worst (tenth) are over the clients in "of"; floats: per client and round, down and up.
state: checksum of everything the server and the clients hold after the last round;
runs with equal checksums ended with bit-identical models."""
WIDTH = 80  # letters per line of these texts


def show(
    folder: Path,
    runs: list[Run] | None = None,
    explain: bool = False,
) -> None:
    """Print notes, table and legend for a run's or a sweep's folder.

    Args:
        folder: Folder of the run or sweep.
        runs: Runs of the folder, as ``list_runs`` returns them; None to list them.
        explain: Whether to print the long explanation.

    Raises:
        UserError: If the folder has no run.
    """
    console = make_console()
    runs = runs or list_runs(folder)
    notes = dict.fromkeys(f"note: {note}" for run in runs for note in run.summary.notes)
    clients = {run.label: _count_clients(run, run.score, "best") for run in runs}
    warning = warn_of_other_clients(clients)
    after = [f"note: {warning}"] if warning else []
    if not is_sweep(folder, runs):
        after.append(f"state: {_describe_state(runs[0])}")
    if explain:
        after.append(f"cite: hpcfl show {shlex.quote(str(folder))} --bibtex")
    for note in notes:
        console.print(literal(note), soft_wrap=True)
    console.print(make_table(sort_best_first(runs)))
    description = EXPLANATION if explain else write_legend(runs)
    console.print(Text(description), style="dim", soft_wrap=True)
    for line in after:
        console.print(literal(line), soft_wrap=True)


def make_json(folder: Path) -> dict[str, Any]:
    """Return the summary of a run, or of each run of a sweep by name, for ``--json``."""
    runs = list_runs(folder)
    if is_sweep(folder, runs):
        return {run.label: asdict(run.summary) for run in runs}
    return asdict(runs[0].summary)


def _describe_state(run: Run) -> str:
    """Return the digest of a run's final state as text, or the reason why it is missing."""
    if run.status.checkpoints_lost:
        return "lost, its checkpoints are damaged"
    if run.summary.digest:
        return f"{run.summary.digest} (checksum of all models)"
    return "not kept" if run.summary.finished else "no checkpoint yet"


def sort_best_first(runs: list[Run]) -> list[Run]:
    """Sort runs by the primary metric in their best round. Runs without one come last."""

    def order(run: Run) -> tuple[bool, float]:
        best = run.summary.best
        if best is None:
            return True, 0.0
        return False, -run.measure.orient(best[run.score])

    return sorted(runs, key=order)


def write_legend(runs: list[Run]) -> str:
    """Return a short explanation of the table's numbers."""
    scores = []
    for run in runs:
        unit = f" in {run.measure.unit}" if run.measure.unit else ""
        scores.append(f"{run.measure.score}{unit}")
    best_by = " or ".join(dict.fromkeys(run.summary.best_by for run in runs))
    listed = escape(" / ".join(dict.fromkeys(scores)))
    return textwrap.fill(LEGEND.format(scores=listed, best_by=best_by), WIDTH)


def _list_scores(runs: list[Run]) -> str:
    """Return the names of the runs' primary scores, usually one, without the modules
    of a user's scores.
    """
    names = [run.measure.score.rpartition(":")[2] for run in runs]
    return " / ".join(dict.fromkeys(names))


def make_table(runs: list[Run]) -> Table:
    """Return a table of the runs in the given order.

    Each run has lines for the models before and after local training at the best round,
    and for the primary metric in the last round and over the last tenth of the rounds.
    Lines on held-out samples and on newcomers follow if they are recorded.
    """
    overview = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    overview.add_column("run", overflow="fold")
    overview.add_column("models", no_wrap=True)
    # A narrow heading leaves room for the names of runs: one line for each word.
    words = _list_scores(runs).split("_")
    score = Text("_\n").join(map(literal, words))
    for heading in (score, "mean (std)", "worst", "at", "of", "floats", "s/round"):
        overview.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        lines = []
        for name, column, at in _list_lines(run):
            lines.append((name, *list_numbers(run, column, at)))
        cells = ["\n".join(texts) for texts in zip(*lines, strict=True)]
        floats_down = _write_number(run.summary.floats_down, ",.0f")
        floats_up = _write_number(run.summary.floats_up, ",.0f")
        overview.add_row(
            _write_title(run),
            *cells,
            f"{floats_down} ↓\n{floats_up} ↑",
            _write_number(run.summary.seconds_per_round, ".3f"),
            end_section=True,
        )
    return overview


def _write_title(run: Run) -> Text:
    """Return the run's name and method, and its rounds if it is unfinished."""
    summary = run.summary
    named = summary.method in run.label
    title = literal(run.label if named else f"{run.label} {summary.method}")
    if not summary.finished:
        title.append(f"\n{summary.rounds} of {run.config['rounds']}")
    return title


def _list_lines(run: Run) -> list[tuple[str, str, str]]:
    """Return the name, the column of models and the rounds of each line of a run."""
    optional = {
        VALIDATION: (name_held_out(run.score), "best"),
        "new": (BEFORE, "last"),
        "tuned": (AFTER, "last"),
    }
    lines = {"before": ("pre", "best"), "after": ("post", "best")}
    if run.score not in ("pre", "post"):
        lines[run.score] = run.score, "best"
    lines |= {"last": (run.score, "last"), "tail": (run.score, "tail")}
    for name, (column, at) in optional.items():
        if MetricName(run.metric, column) in run.results.names:
            lines[name] = column, at
    return [
        (f"{'▸' if place == (run.score, 'best') else ' '}{name}", *place)
        for name, place in lines.items()
    ]


def list_numbers(run: Run, column: str, at: str) -> tuple[str, str, str, str, str]:
    """Return the texts of a line of the table.

    Args:
        run: Run.
        column: Column of scored models.
        at: Rounds at which the score is read.

    Returns:
        Score, mean over clients with the population standard deviation in brackets, mean
        of the worst tenth, rounds, and number of clients; a dash for each unknown one.
    """
    positions = find_scored(run, column, at)
    if not positions:
        return "–", "–", "–", "–", "–"
    described = run.scores.get(run.measure.score)
    numbers = described["recorded"] if described else {"": run.metric}

    def write(kind: str) -> str:
        name = MetricName(numbers.get(kind, ""), column)
        if name not in run.results.names:
            return "–"
        return run.measure.format(run.results.get_series(name)[positions].mean())

    first, last = run.results.rounds[[positions[0], positions[-1]]].tolist()
    rounds = dict.fromkeys(_name_round(run, number) for number in (first, last))
    return (
        write(next(iter(numbers))),
        f"{write('mean')} ({write('std')})",
        write("worst_tenth"),
        "–".join(rounds),
        _count_clients(run, column, at) or "–",
    )


def _name_round(run: Run, number: int) -> str:
    """Return the number of a round; "end" for the scoring after the last aggregation."""
    return "end" if number > run.config["rounds"] else str(number)


def _count_clients(run: Run, column: str, at: str) -> str:
    """Return the number of clients of a column as text; "" if it is not recorded."""
    positions = find_scored(run, column, at)
    if not positions:
        return format_clients([])
    return format_clients(count_clients(run, column, run.measure, positions).tolist())


def _write_number(value: float | None, form: str) -> str:
    """Format a number; None becomes a dash."""
    return "–" if value is None else format(value, form)
