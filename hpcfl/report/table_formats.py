"""A table of results and its output formats: terminal, Markdown, LaTeX and CSV."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from pandas import DataFrame
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from hpcfl.report.text import WIDEST, escape, literal

MISSING = "–"  # text of an entry that was not run or lacks the number
LABEL_LETTERS = 40  # letters of a row's label that are always shown


@dataclass(frozen=True)
class Table:
    """A table of texts that can be written in any format.

    Attributes:
        title: Title, one line.
        texts: Cells, rows × columns.
        best: Whether each cell is set in bold, rows × columns.
        numbers: Numbers in full precision for other programs, a row for each entry.
        notes: Lines to show below the table.
    """

    title: str
    texts: DataFrame
    best: DataFrame
    numbers: DataFrame
    notes: Sequence[str] = ()


def fit_width(table: Table, console: Console) -> list[RichTable]:
    """Return tables with consecutive columns that each fit the width of a console.

    Where all columns do not fit, headings are wrapped and then columns are moved to
    further tables. A single column may still be too wide.
    """
    if measure_width(make_cells(table), console) <= console.width:
        return [make_cells(table)]
    parts: list[list[str]] = [[]]
    for column in table.texts.columns:
        wider = make_cells(table, [*parts[-1], column], wraps=True)
        if parts[-1] and measure_width(wider, console) > console.width:
            parts.append([])
        parts[-1].append(column)
    fitting = []
    for part in parts:
        cells = make_cells(table, part)
        wraps = measure_width(cells, console) > console.width
        fitting.append(make_cells(table, part, wraps=True) if wraps else cells)
    return fitting


def measure_width(cells: RichTable, console: Console) -> int:
    """Return the number of columns of a terminal that a table needs."""
    boundless = console.options.update(max_width=WIDEST)
    return Measurement.get(console, boundless, cells).maximum


def make_cells(
    table: Table, columns: Sequence[str] | None = None, wraps: bool = False
) -> RichTable:
    """Return a table for a console of rich, with the best numbers in bold.

    Args:
        table: Table.
        columns: Columns to show; by default all.
        wraps: Whether headings are wrapped to the width of their columns.
    """
    names = list(table.texts.columns if columns is None else columns)
    cells = RichTable(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    # On a narrow terminal numbers wrap before the label of a row is cut.
    longest = max(len(escape(row)) for row in table.texts.index)
    cells.add_column("", no_wrap=True, min_width=min(longest, LABEL_LETTERS))
    for column in names:
        heading = escape(column)
        if wraps:
            words = [*heading.split(), *table.texts[column]]
            heading = fill(heading, max(map(len, words)))
        cells.add_column(Text(heading), justify="right")
    for row, texts in table.texts[names].iterrows():
        styles = table.best.loc[row, names].map({True: "bold", False: ""})
        cells.add_row(literal(row), *map(Text, texts, styles))
    return cells


def write_markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown with the title above and the notes below."""
    cells = table.texts.mask(table.best, "**" + table.texts + "**")
    headings = [_escape(column) for column in cells.columns]
    rule = ["---"] + ["---:"] * len(headings)
    lines = [["", *headings], rule]
    for row, *texts in cells.itertuples():
        lines.append([_escape(row), *texts])
    rows = [f"| {' | '.join(line)} |" for line in lines]
    notes = [text for note in table.notes for text in ("", _escape(note))]
    parts = [_escape(table.title), "", *rows, *notes]
    return "\n".join(parts)


def write_latex(table: Table) -> str:
    """Return a ``tabular`` in LaTeX for the package booktabs."""
    numbers = table.texts.replace("±", r"\\pm", regex=True)
    numbers = numbers.mask(table.best, r"\mathbf{" + numbers + "}")
    of_numbers = table.texts.apply(lambda column: column.str.match(r"[-+>\[\d]"))
    cells = numbers.mask(of_numbers, "$" + numbers + "$")
    cells = cells.mask(table.texts == MISSING, "--")
    styler = cells.rename(index=escape, columns=escape).style
    for axis in ("index", "columns"):
        styler.format_index(escape="latex", axis=axis)
    alignment = "l" + "r" * len(table.texts.columns)
    tabular = styler.to_latex(column_format=alignment, hrules=True)
    notes = [f"% {escape(note)}" for note in table.notes]
    title = f"% {escape(table.title)}"
    return "\n".join([title, tabular.rstrip("\n"), *notes])


def write_csv(table: Table) -> str:
    """Return CSV with a line for each entry in full precision."""
    lines = table.numbers.copy()
    for name in lines.select_dtypes(exclude="number"):
        lines[name] = lines[name].map(lambda content: escape(str(content)))
    text = lines.to_csv(index=False, na_rep="nan", lineterminator="\n")
    return str(text).rstrip("\n")


TEXTS = {"markdown": write_markdown, "csv": write_csv, "latex": write_latex}


def _escape(text: str) -> str:
    """Escape a text for Markdown. A '_' within a word needs no escape."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", escape(text))
