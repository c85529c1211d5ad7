"""A grid of results as a table for a terminal, Markdown, LaTeX or CSV: pure functions."""

import re

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from hpcfl.report.grid import MISSING, Grid
from hpcfl.report.text import literal, plain

READ = {
    "best": "at each run's best round by {best_by} samples",
    "last": "of the last round",
    "tail": "as mean of the last tenth of the rounds",
}


def terminal(grid: Grid) -> RenderableType:
    """The grid for a console of rich, with its title and notes."""
    heading = literal(title(grid))
    notes = [literal(note) for note in grid.notes]
    return Group(heading, cells_of(grid), *notes)


def cells_of(grid: Grid) -> Table:
    """The grid's rows and columns for a console of rich, the best numbers in bold."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in grid.columns:
        table.add_column(literal(column), justify="right")
    cells = grid.texts.mask(grid.best, "[bold]" + grid.texts + "[/]")
    for row, *texts in cells.itertuples():
        table.add_row(literal(row), *texts)
    return table


def markdown(grid: Grid) -> str:
    """A table of GitHub's Markdown, with a line about the metric above and what was
    left out below.
    """
    cells = grid.texts.mask(grid.best, "**" + grid.texts + "**")
    headings = [_safe(column) for column in grid.columns]
    alignments = ["---:"] * len(headings)
    lines = [_safe(title(grid)), ""]
    lines.append(_line(["", *headings]))
    lines.append(_line(["---", *alignments]))
    for row, *texts in cells.itertuples():
        lines.append(_line([_safe(row), *texts]))
    for note in grid.notes:
        lines += ["", _safe(note)]
    return "\n".join(lines)


def latex(grid: Grid) -> str:
    """A ``tabular`` for the package booktabs."""
    numbers = grid.texts.replace("±", r"\\pm", regex=True)
    numbers = numbers.mask(grid.best, r"\mathbf{" + numbers + "}")
    cells = ("$" + numbers + "$").mask(grid.texts == MISSING, "--")
    styler = cells.rename(index=plain, columns=plain).style
    for axis in ("index", "columns"):
        styler.format_index(escape="latex", axis=axis)
    alignment = "l" + "r" * len(grid.columns)
    tabular = styler.to_latex(column_format=alignment, hrules=True)
    heading = f"% {plain(title(grid))}"
    notes = [f"% {plain(note)}" for note in grid.notes]
    return "\n".join([heading, tabular.rstrip("\n"), *notes])


def long_csv(grid: Grid) -> str:
    """A line for each entry, in full precision: row, column, metric, at, mean, std,
    runs, clients, best_by.
    """
    from pandas import MultiIndex

    cells = MultiIndex.from_product([grid.rows, grid.columns])
    filled = cells.intersection(grid.entries.index, sort=False)
    entries = grid.entries.reindex(filled).drop(columns="best")
    lines = entries.rename_axis(["row", "column"]).reset_index()
    lines.insert(2, "metric", plain(grid.metric))
    lines.insert(3, "at", plain(grid.at))
    for labels in ("row", "column"):
        lines[labels] = lines[labels].map(plain)
    text = lines.to_csv(index=False, na_rep="nan", lineterminator="\n")
    return str(text).rstrip("\n")


TEXTS = {"markdown": markdown, "csv": long_csv, "latex": latex}


def title(grid: Grid) -> str:
    """What the numbers of the grid are, in a line."""
    unit = " in %" if grid.percent else ""
    best_by = sorted(set(grid.entries["best_by"]))
    rounds = READ[grid.at].format(best_by=" or ".join(best_by))
    counts = set(grid.entries["clients"]) - {""}
    clients = f", of {counts.pop()} clients" if len(counts) == 1 else ""
    seeds = grid.entries["runs"].max()
    repetitions = "one seed"
    if seeds > 1:
        repetitions = f"mean ± {grid.spread} standard deviation over {seeds} seeds"
    return f"{grid.metric}{unit} {rounds}{clients}, {repetitions}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    """Text escaped for Markdown, where a '_' within a word needs no escape."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", plain(text))
