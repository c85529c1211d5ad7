"""Characters that would break a table are escaped."""

import csv
import io

import pandas
import pytest
from rich.console import Console
from test_text import HOSTILE, SHOWN

from hpcfl.report import table_formats
from hpcfl.report.table_formats import Table


@pytest.fixture
def grid():
    rows = [HOSTILE, r"a\b*c`<br>|~^_"]
    texts = pandas.DataFrame({HOSTILE: ["50.00 ± 1.00"] * 2}, rows)
    numbers = pandas.DataFrame({"row": rows, "column": HOSTILE, "mean": 50.0})
    return Table(HOSTILE, texts, texts == "", numbers, [HOSTILE])


def test_a_grid_on_a_terminal_is_text(grid, printed):
    Console(width=300).print(table_formats.make_cells(grid))
    output = printed()
    assert output.count(SHOWN) == 2 and "\x1b" not in output


def test_a_narrow_terminal_shows_names_of_rows_whole(printed):
    name = "fed_select:FedSelect"
    texts = pandas.DataFrame(
        {f"column {n}": ["50.00 ± 1.00"] for n in range(4)}, [name]
    )
    Console(width=60).print(
        table_formats.make_cells(Table("", texts, texts == "", texts))
    )
    assert name in printed()


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_shows_every_number(printed, width):
    headings = ["gain ± 95 %", "p (pairs of client and seed)", "verdict", "hurt by"]
    numbers = ["+62.71 ± 17.29", "0.0092", "better", "-4.55"]
    texts = pandas.DataFrame([numbers * 2], ["ditto"], [*headings, *"abcd"])
    console = Console(width=width)
    for cells in table_formats.fit_width(Table("", texts, texts == "", texts), console):
        console.print(cells)
    shown = printed()
    assert all(shown.count(number) == 2 for number in numbers)
    assert all(word in shown for heading in headings for word in heading.split())
    assert max(map(len, shown.splitlines())) <= width


def test_markdown_keeps_its_form(grid):
    lines = table_formats.write_markdown(grid).splitlines()
    assert len(lines) == 8
    assert lines[4] == (
        r"| \\x1b\[31mred\\x1b\]0;title\\x07 \[bold red\]markup\[/\] \\x9b2J \\u202etxet "
        r":smile: a\\nb "
        "| 50.00 ± 1.00 |"
    )
    assert lines[5] == r"| a\\b\*c\`\<br\>\|~^_ | 50.00 ± 1.00 |"


def test_latex_keeps_its_form(grid):
    lines = table_formats.write_latex(grid).splitlines()
    assert len(lines) == 10 and lines[0] == lines[-1] == f"% {SHOWN}"
    assert (
        lines[6]
        == r"a\textbackslash b*c`<br>|\textasciitilde \textasciicircum \_ & $50.00 "
        r"\pm 1.00$ \\"
    )


def test_csv_keeps_its_form(grid):
    found = list(csv.reader(io.StringIO(table_formats.write_csv(grid))))
    assert [line[:2] for line in found[1:]] == [
        [SHOWN, SHOWN],
        [r"a\b*c`<br>|~^_", SHOWN],
    ]
