"""A grid of results as a table for a terminal, Markdown, LaTeX or CSV: pure functions."""

import csv
import io
import re

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from hpcfl.report.grid import Entry, Grid
from hpcfl.report.text import literal, plain


def terminal(grid: Grid) -> RenderableType:
    """The grid for a console of rich, with its title and notes."""
    return Group(literal(title(grid)), cells_of(grid), *map(literal, grid.notes))


def cells_of(grid: Grid) -> Table:
    """The grid's own part of it."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in grid.columns:
        table.add_column(literal(column), justify="right")
    for row, entries in zip(grid.rows, grid.entries, strict=True):
        texts = (cell(entry, grid, "±") for entry in entries)
        table.add_row(
            literal(row),
            *(
                f"[bold]{text}[/]" if entry and entry.best else text
                for entry, text in zip(entries, texts, strict=True)
            ),
        )
    return table


def markdown(grid: Grid) -> str:
    """A table of GitHub's Markdown, with a line about the metric above and what was
    left out below.
    """
    heading = ["", *map(_safe, grid.columns)]
    lines = [
        _safe(title(grid)),
        "",
        _line(heading),
        _line(["---", *["---:"] * len(grid.columns)]),
    ]
    for row, entries in zip(grid.rows, grid.entries, strict=True):
        texts = (cell(entry, grid, "±") for entry in entries)
        lines.append(
            _line(
                [
                    _safe(row),
                    *(
                        f"**{text}**" if entry and entry.best else text
                        for entry, text in zip(entries, texts, strict=True)
                    ),
                ]
            )
        )
    return "\n".join([*lines, *(f"\n{_safe(note)}" for note in grid.notes)])


def latex(grid: Grid) -> str:
    """A ``tabular`` for the package booktabs."""
    lines = [
        f"% {plain(title(grid))}",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        " & ".join(["", *map(_tex, grid.columns)]) + r" \\",
        r"\midrule",
    ]
    for row, entries in zip(grid.rows, grid.entries, strict=True):
        texts = (cell(entry, grid, r"\pm") for entry in entries)
        cells = (
            "--"
            if text == MISSING
            else f"$\\mathbf{{{text}}}$"
            if entry and entry.best
            else f"${text}$"
            for entry, text in zip(entries, texts, strict=True)
        )
        lines.append(" & ".join([_tex(row), *cells]) + r" \\")
    return "\n".join(
        [
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            *(f"% {plain(note)}" for note in grid.notes),
        ]
    )


def long_csv(grid: Grid) -> str:
    """A line for each entry, in full precision: row, column, metric, at, mean, std,
    runs, clients, best_by.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["row", "column", "metric", "at", "mean", "std", "runs", "clients", "best_by"]
    )
    for row, entries in zip(grid.rows, grid.entries, strict=True):
        for column, entry in zip(grid.columns, entries, strict=True):
            if entry is not None:
                names = map(plain, (row, column, grid.metric, grid.at))
                writer.writerow(
                    [
                        *names,
                        repr(entry.mean),
                        repr(entry.std),
                        entry.runs,
                        entry.clients,
                        entry.best_by,
                    ]
                )
    return text.getvalue().rstrip("\n")


TEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
MOMENTS = {
    "best": "at each run's best round by {best_by} samples",
    "last": "of the last round",
    "tail": "as mean of the last tenth of the rounds",
}
MISSING = "–"  # of what was not run, or has no such number
TEXTS = {"markdown": markdown, "csv": long_csv, "latex": latex}


def title(grid: Grid) -> str:
    """What the numbers of the grid are, in a line."""
    seeds = _most_runs(grid)
    over = (
        f"mean ± {grid.spread} standard deviation over {seeds} seeds"
        if seeds > 1
        else "one seed"
    )
    entries = [entry for row in grid.entries for entry in row if entry]
    clients = {entry.clients for entry in entries if entry.clients}
    best_by = " or ".join(sorted({entry.best_by for entry in entries}))
    moment = MOMENTS[grid.at].format(best_by=best_by)
    of = f", of {clients.pop()} clients" if len(clients) == 1 else ""
    return f"{grid.metric}{' in %' if grid.percent else ''} {moment}{of}, {over}"


def _most_runs(grid: Grid) -> int:
    """The largest number of repetitions of an entry."""
    return max(entry.runs for row in grid.entries for entry in row if entry)


def cell(entry: Entry | None, grid: Grid, sign: str) -> str:
    """An entry as ``85.31 ± 0.42``, with ``(2)`` behind it if it has only 2 runs and
    others have more.
    """
    if entry is None or entry.mean != entry.mean:
        return MISSING
    form = ".2f" if grid.percent else ".4g"
    spread = f" {sign} {entry.std:{form}}" if entry.runs > 1 else ""
    return f"{entry.mean:{form}}{spread}{f' ({entry.runs})' if entry.runs < _most_runs(grid) else ''}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    """Text escaped for Markdown, where a '_' within a word needs no escape."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", plain(text))


def _tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in plain(text))
