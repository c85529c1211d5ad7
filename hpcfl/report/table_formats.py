"""A table of results, and its forms for a terminal, in Markdown, LaTeX and CSV."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pandas import DataFrame
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from hpcfl.report.text import literal, plain

MISSING = "–"  # of what was not run, or has no such number
LONGEST = 40  # letters of a row's name that are always shown


@dataclass(frozen=True)
class Table:
    """A table as it is shown, not yet in any format.

    Attributes:
        title: What its numbers are, in a line.
        texts: Its cells, rows × columns.
        best: Which of them are set in bold, of the same shape.
        numbers: The same for other programs: a line for each entry, in full precision.
        notes: Lines to show below.
    """

    title: str
    texts: DataFrame
    best: DataFrame
    numbers: DataFrame
    notes: Sequence[str] = ()


def cells_of(table: Table) -> RichTable:
    """Return rows and columns for a console of rich, the best numbers in bold."""
    cells = RichTable(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    # A narrow terminal breaks numbers before it cuts the name of a row.
    longest = max(len(plain(row)) for row in table.texts.index)
    cells.add_column("", no_wrap=True, min_width=min(longest, LONGEST))
    for column in table.texts.columns:
        cells.add_column(literal(column), justify="right")
    for row, texts in table.texts.iterrows():
        styles = table.best.loc[row].map({True: "bold", False: ""})
        cells.add_row(literal(row), *map(Text, texts, styles))
    return cells


def markdown(table: Table) -> str:
    """Return a table of GitHub's Markdown with the title above and the notes below."""
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


def latex(table: Table) -> str:
    """Return a ``tabular`` for the package booktabs."""
    numbers = table.texts.replace("±", r"\\pm", regex=True)
    numbers = numbers.mask(table.best, r"\mathbf{" + numbers + "}")
    of_numbers = table.texts.apply(lambda column: column.str.match(r"[-+>\[\d]"))
    cells = numbers.mask(of_numbers, "$" + numbers + "$")
    cells = cells.mask(table.texts == MISSING, "--")
    styler = cells.rename(index=plain, columns=plain).style
    for axis in ("index", "columns"):
        styler.format_index(escape="latex", axis=axis)
    alignment = "l" + "r" * len(table.texts.columns)
    tabular = styler.to_latex(column_format=alignment, hrules=True)
    notes = [f"% {plain(note)}" for note in table.notes]
    title = f"% {plain(table.title)}"
    return "\n".join([title, tabular.rstrip("\n"), *notes])


def long_csv(table: Table) -> str:
    """Return CSV with a line for each entry, in full precision."""
    lines = table.numbers.copy()
    for name in lines.select_dtypes(exclude="number"):
        lines[name] = lines[name].map(lambda content: plain(str(content)))
    text = lines.to_csv(index=False, na_rep="nan", lineterminator="\n")
    return str(text).rstrip("\n")


TEXTS = {"markdown": markdown, "csv": long_csv, "latex": latex}


def _escape(text: str) -> str:
    """Escape a text for Markdown, where a '_' within a word needs no escape."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", plain(text))
