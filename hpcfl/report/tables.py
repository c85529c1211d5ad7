"""Tables for a terminal: what came out of a run or a sweep."""

from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcfl.report.summary import Run, is_sweep, load_all
from hpcfl.report.text import literal

MOMENTS = (("pre", "before"), ("post", "after"))
CAPTION = """\
Models before and after local training on the clients' own test samples, in %,
at the best round of the column that counts (▸). accuracy: of all samples;
mean ± std, worst tenth: over clients; floats: to and from a client in a round."""


def show(folder: Path) -> None:
    """Print what is in a run's or a sweep's folder. Raises UserError where there is nothing."""
    console = Console(highlight=False)
    runs = load_all(folder)
    for run in runs:
        for note in run.notes:
            console.print(literal(f"note: {note}"), soft_wrap=True)
    console.print(table(best_first(runs)))
    console.print(CAPTION, style="dim", soft_wrap=True)
    if not is_sweep(folder, runs):
        console.print(f"state: {runs[0].summary.digest or 'no checkpoint yet'}", soft_wrap=True)


def best_first(runs: list[Run]) -> list[Run]:
    """Runs by their best accuracy, highest first; those without any last."""
    return sorted(runs, key=lambda run: -(run.summary.best or {}).get(run.score, -1.0))


def table(runs: list[Run]) -> Table:
    """Two lines for each run: its models before and after local training."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    found.add_column("run", overflow="fold")
    found.add_column("models", no_wrap=True)
    for heading in ("accuracy", "mean ± std", "worst", "at", "floats", "s/round"):
        found.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        lines = [(f"{'▸' if column == run.score else ' '}{moment}", *_accuracies(run, column)) for column, moment in MOMENTS]
        floats = f"{_number(run.summary.floats_down, ',.0f')} ↓\n{_number(run.summary.floats_up, ',.0f')} ↑"
        found.add_row(_title(run), *("\n".join(pair) for pair in zip(*lines, strict=True)), floats,
                      _number(run.summary.seconds_per_round, ".3f"), end_section=True)
    return found


def _title(run: Run) -> Text:
    """What the run is called, and how far it is while it is not finished."""
    summary = run.summary
    title = literal(run.label if summary.method in run.label else f"{run.label} {summary.method}")
    return title if summary.finished else title.append(f"\n{summary.rounds} of {run.config['rounds']}")


def _accuracies(run: Run, column: str) -> tuple[str, str, str, str]:
    """Accuracy, mean ± std and worst tenth in per cent, and the round they are of: the best, or the latest before it that has
    this column."""
    best = run.summary.best
    known = np.flatnonzero(~np.isnan(run.accuracy(column)))
    known = known[run.results.rounds[known] <= best["round"]] if best else known[:0]
    if not len(known):
        return "–", "–", "–", "–"
    here = known[-1]
    weighted, mean, std, worst = (_percent(run, f"{column}/{name}", here)
                                  for name in ("weighted", "mean", "std", "worst_tenth"))
    return weighted, f"{mean} ± {std}", worst, str(run.results.rounds[here])


def _percent(run: Run, name: str, position: int) -> str:
    values = run.results.values.get(name)
    return "–" if values is None else f"{100 * values[position]:.2f}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
