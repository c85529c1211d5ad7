"""``hpcfl show``: what came out of a run, or of each run of a sweep, as a table for a
terminal.
"""

import shlex
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from hpcfl.report import virtual_time
from hpcfl.report.client_counts import clients_text, mixed
from hpcfl.report.reading import (
    VALIDATION,
    holds_out,
    own_column,
    time_to,
    where_scored,
)
from hpcfl.report.summary import Run, is_sweep, load_all
from hpcfl.report.text import literal, plain, stdout_console
from hpcfl.scores._metric_name import CLIENTS, MetricName
from hpcfl.storage.result_rounds import AFTER, BEFORE

# columns, and how they are called in the table
MODELS = (("pre", "before"), ("post", "after"))
NEWCOMERS = ((BEFORE, "new"), (AFTER, "tuned"))
# summaries that are not said by their name and "over clients"
MEANINGS = {"weighted": "of all samples"}
LEGEND = (
    "{score}{unit} before and after local training, on test samples{held_out}. ▸ counts: "
    "its best round is chosen on {best_by} samples. last: the last round; tail: mean "
    "of the last tenth of them. More: hpcfl show --explain"
)
LEGEND_OF_HELD_OUT = " (validation: on held-out ones)"
EXPLANATION = """\
Models before and after local training on the clients' own test samples{unit},
at the best round, by {best_by} samples, of the column that counts (▸), or the
latest before it that has them; that column at the end (last), and its mean over
the last tenth of the rounds (tail).{final}
{score}: {meaning}; mean (std), worst tenth: over clients, so many as
in "of"; floats: to and from a client in a round."""
EXPLANATION_OF_FINAL = " Round {} is the scoring\nafter the last aggregation."
EXPLANATION_OF_HELD_OUT = """
Validation: the column that counts at its best round, but on training samples
that training.validation held out: to choose settings by, such as training.lr."""
EXPLANATION_OF_NEWCOMERS = """
New: clients that were never trained with; tuned: after a training of their own."""
EXPLANATION_OF_STATE = """
State: a checksum of all that the server and the clients hold after the last
round; two runs with the same one ended with the same models, bit for bit."""
WIDTH = 80  # letters of a line of these texts


def show(
    folder: Path,
    runs: list[Run] | None = None,
    explain: bool = False,
    target: float | None = None,
) -> None:
    """Print notes, table and legend for a run's or a sweep's folder.

    Args:
        folder: The run's or the sweep's.
        runs: What ``load_all`` gave for it, if that was called already.
        explain: Whether the legend says everything.
        target: Of the number that counts, as it is shown; when it was reached is said
            for each run.

    Raises:
        UserError: There is no run, or it has no time of its clients' own.
    """
    console = stdout_console()
    runs = runs or load_all(folder)
    reached = [] if target is None else [_reached(run, target) for run in runs]
    for run in runs:
        for note in run.notes:
            console.print(literal(f"note: {note}"), soft_wrap=True)
    console.print(table(best_first(runs)))
    description = explanation(runs) if explain else legend(runs)
    console.print(Text(description), style="dim", soft_wrap=True)
    clients = {}
    for run in runs:
        positions = where_scored(run, run.score, "best")
        clients[run.label] = _clients(run, run.score, positions)
    warning = mixed(clients)
    if warning:
        console.print(literal(f"note: {warning}"), soft_wrap=True)
    for line in reached:
        console.print(literal(line), soft_wrap=True)
    if not is_sweep(folder, runs):
        console.print(f"state: {_state(runs[0])}", soft_wrap=True)
    if explain:
        place = shlex.quote(str(folder))
        console.print(literal(f"cite: hpcfl show {place} --bibtex"), soft_wrap=True)


def as_json(folder: Path, target: float | None = None) -> dict[str, Any]:
    """What ``hpcfl show --json`` prints: the summary of a run, or those of a sweep's
    runs by name; with a ``target`` also when what counts was as good.
    """
    runs = load_all(folder)
    if is_sweep(folder, runs):
        return {run.label: _told(run, target) for run in runs}
    return _told(runs[0], target)


def _told(run: Run, target: float | None) -> dict[str, Any]:
    """The summary of a run. ``time_to``: the first round in which what counts was as good
    as the ``target``, as it is shown, and the seconds of the clients' own time until
    then; None for both where it never was.
    """
    told = asdict(run.summary)
    if target is not None:
        first = time_to(run, str(run.counted), target)
        seconds = None if first.round is None else first.seconds
        told["time_to"] = {"target": target, "seconds": seconds, "round": first.round}
    return told


def _reached(run: Run, target: float) -> str:
    """When the number that counts was as good as ``target``, as it is shown."""
    unit = f" {run.measure.unit}" if run.measure.unit else ""
    wanted = f"{run.label}: {run.counted} {target:g}{unit}"
    first = time_to(run, str(run.counted), target)
    if first.round is None:
        end = virtual_time.seconds_of(run, "post")[-1]
        return f"{wanted} not reached in {end:,.1f} s of the clients' own time"
    return (
        f"{wanted} after {first.seconds:,.1f} s of the clients' own time, in round "
        f"{first.round}"
    )


def _state(run: Run) -> str:
    """The digest of a run's last state with what it is, or why there is none."""
    if run.status.checkpoints_lost:
        return "lost, its checkpoints are damaged"
    if run.summary.digest:
        return f"{run.summary.digest} (checksum of all models)"
    return "not kept" if run.summary.finished else "no checkpoint yet"


def best_first(runs: list[Run]) -> list[Run]:
    """Runs sorted by what counts in their best round, the best first; those without a
    scored round last.
    """

    def order(run: Run) -> tuple[bool, float]:
        best = run.summary.best
        if best is None:
            return True, 0.0
        return False, -run.measure.rank(best[run.score])

    return sorted(runs, key=order)


def legend(runs: list[Run]) -> str:
    """What the table's numbers are, in at most three lines."""
    unit = runs[0].measure.unit
    held_out = any(holds_out(run) for run in runs)
    text = LEGEND.format(
        score=plain(_scores_of(runs)),
        unit=f" in {plain(unit)}" if unit else "",
        held_out=LEGEND_OF_HELD_OUT if held_out else "",
        best_by=_best_by(runs),
    )
    return textwrap.fill(text, WIDTH)


def explanation(runs: list[Run]) -> str:
    """All there is to say of the table's numbers. Meaning and unit are those of the
    score that counts in the first run.
    """
    measure = runs[0].measure
    described = runs[0].scores.get(measure.score)
    kind = next(iter(described["recorded"])) if described else measure.kind
    unit = f", in {plain(measure.unit)}" if measure.unit else ""
    meaning = MEANINGS.get(kind, f"{plain(kind)} over clients")
    finals = sorted({run.config["rounds"] + 1 for run in runs if run.summary.finished})
    final = EXPLANATION_OF_FINAL.format(finals[0]) if len(finals) == 1 else ""
    of_all = EXPLANATION.format(
        unit=unit,
        best_by=_best_by(runs),
        score=plain(_scores_of(runs)),
        meaning=meaning,
        final=final,
    )
    held_out = EXPLANATION_OF_HELD_OUT if any(map(holds_out, runs)) else ""
    newcomers = EXPLANATION_OF_NEWCOMERS if any(map(_newcomers, runs)) else ""
    return of_all + held_out + newcomers + EXPLANATION_OF_STATE


def _best_by(runs: list[Run]) -> str:
    """The samples that the runs' best rounds are chosen on."""
    return " or ".join(dict.fromkeys(run.summary.best_by for run in runs))


def _scores_of(runs: list[Run]) -> str:
    """The names of the scores that count in the runs, mostly one."""
    return " / ".join(dict.fromkeys(run.measure.score for run in runs))


def table(runs: list[Run]) -> Table:
    """The runs in the given order: the models before and after local training at the
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
            lines.append((name, *_numbers(run, column, at)))
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
    """The run's name and method, and how far it is if it is not finished."""
    summary = run.summary
    named = summary.method in run.label
    title = literal(run.label if named else f"{run.label} {summary.method}")
    if not summary.finished:
        title.append(f"\n{summary.rounds} of {run.config['rounds']}")
    return title


def _lines(run: Run) -> list[tuple[str, str, str]]:
    """What the lines of a run are called, the column of models that each is of, and
    where it is read.
    """
    lines = []
    for column, name in MODELS:
        mark = "▸" if column == run.score else " "
        lines.append((f"{mark}{name}", column, "best"))
    if holds_out(run):
        lines.append((VALIDATION, own_column(run, VALIDATION), "best"))
    lines += [(f" {at}", run.score, at) for at in ("last", "tail")]
    lines += [(f" {name}", column, "last") for column, name in _newcomers(run)]
    return lines


def _newcomers(run: Run) -> list[tuple[str, str]]:
    """The columns of newcomers that the run has scored, and what they are called in the
    table.
    """
    scored = []
    for column, name in NEWCOMERS:
        if MetricName(run.metric, column) in run.results.names:
            scored.append((column, name))
    return scored


def _numbers(run: Run, column: str, at: str) -> tuple[str, str, str, str, str]:
    """Return the texts of a column: its score, the mean over clients with the population's
    standard deviation in brackets, the worst tenth, the rounds, the number of clients.
    """
    positions = where_scored(run, column, at)
    if not positions:
        return "–", "–", "–", "–", "–"
    described = run.scores.get(run.measure.score)
    numbers = described["recorded"] if described else {"": run.metric}
    first_kind = next(iter(numbers))
    texts = []
    for kind in (first_kind, "mean", "std", "worst_tenth"):
        texts.append(_shown(run, column, numbers.get(kind), positions))
    first, mean, std, worst = texts
    ends = run.results.rounds[[positions[0], positions[-1]]].tolist()
    rounds = "–".join(map(str, dict.fromkeys(ends)))
    clients = _clients(run, column, positions) or "–"
    return first, f"{mean} ({std})", worst, rounds, clients


def _clients(run: Run, column: str, positions: list[int]) -> str:
    """Of how many clients a column's numbers are; "" where that was not recorded."""
    clients = run.results.series(MetricName(CLIENTS, column))
    return clients_text(clients[positions].tolist())


def _shown(run: Run, column: str, number: str | None, positions: list[int]) -> str:
    """The mean of a column's number over rounds as text; a dash if it was not
    recorded.
    """
    if number is None or MetricName(number, column) not in run.results.names:
        return "–"
    values = run.results.series(MetricName(number, column))
    return run.measure.shown(values[positions].mean())


def _number(value: float | None, form: str) -> str:
    """A number in the format ``form``; a dash where there is none."""
    return "–" if value is None else format(value, form)
