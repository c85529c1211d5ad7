"""A table of results for a terminal, in Markdown, LaTeX or CSV: pure functions."""

import re

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcfl.report.grid import MISSING, Grid, Sheet
from hpcfl.report.text import literal, plain


def terminal(grid: Grid | Sheet) -> RenderableType:
    """Return the table for a console of rich, with its title and notes."""
    heading = literal(grid.title)
    notes = [literal(note) for note in grid.notes]
    return Group(heading, cells_of(grid), *notes)


def cells_of(grid: Grid | Sheet) -> Table:
    """Return rows and columns for a console of rich, the best numbers in bold."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in grid.texts.columns:
        table.add_column(literal(column), justify="right")
    for row, *texts in grid.texts.itertuples():
        bold = grid.best.loc[row]
        cells = [
            Text(text, style="bold" if best else "")
            for text, best in zip(texts, bold, strict=True)
        ]
        table.add_row(literal(row), *cells)
    return table


def markdown(grid: Grid | Sheet) -> str:
    """Return a table of GitHub's Markdown with the title above and the notes below."""
    cells = grid.texts.mask(grid.best, "**" + grid.texts + "**")
    headings = [_safe(column) for column in grid.texts.columns]
    alignments = ["---:"] * len(headings)
    lines = [_safe(grid.title), ""]
    lines.append(_line(["", *headings]))
    lines.append(_line(["---", *alignments]))
    for row, *texts in cells.itertuples():
        lines.append(_line([_safe(row), *texts]))
    for note in grid.notes:
        lines += ["", _safe(note)]
    return "\n".join(lines)


def latex(grid: Grid | Sheet) -> str:
    """Return a ``tabular`` for the package booktabs."""
    numbers = grid.texts.replace("±", r"\\pm", regex=True)
    numbers = numbers.mask(grid.best, r"\mathbf{" + numbers + "}")
    of_numbers = grid.texts.apply(lambda column: column.str.match(r"[-+>\[\d]"))
    cells = numbers.mask(of_numbers, "$" + numbers + "$")
    cells = cells.mask(grid.texts == MISSING, "--")
    styler = cells.rename(index=plain, columns=plain).style
    for axis in ("index", "columns"):
        styler.format_index(escape="latex", axis=axis)
    alignment = "l" + "r" * len(grid.texts.columns)
    tabular = styler.to_latex(column_format=alignment, hrules=True)
    heading = f"% {plain(grid.title)}"
    notes = [f"% {plain(note)}" for note in grid.notes]
    return "\n".join([heading, tabular.rstrip("\n"), *notes])


def long_csv(grid: Grid | Sheet) -> str:
    """Return CSV with a line for each entry, in full precision."""
    lines = grid.numbers.copy()
    for name in lines.select_dtypes(exclude="number"):
        lines[name] = lines[name].map(lambda content: plain(str(content)))
    text = lines.to_csv(index=False, na_rep="nan", lineterminator="\n")
    return str(text).rstrip("\n")


TEXTS = {"markdown": markdown, "csv": long_csv, "latex": latex}


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    """Escape a text for Markdown, where a '_' within a word needs no escape."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", plain(text))
