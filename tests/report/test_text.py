"""Escape sequences, markup and characters that would break a table are printed as text."""

import io
import json

import made_up
import pytest
from rich.console import Console

from hpcfl.report import tables
from hpcfl.report.text import escape, literal
from hpcfl.trained import loading

HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 [bold red]markup[/] \x9b2J \u202etxet :smile: a\nb"
)
SHOWN = (
    r"\x1b[31mred\x1b]0;title\x07 [bold red]markup[/] \x9b2J \u202etxet :smile: a\nb"
)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")


def test_invisible_characters_are_escaped():
    assert escape(HOSTILE) == SHOWN
    assert escape("ünï 東京 a_b") == "ünï 東京 a_b"
    assert escape("caf\udce9") == r"caf\udce9"


def test_rich_finds_no_markup():
    output = io.StringIO()
    Console(
        file=output, force_terminal=True, width=300, color_system="truecolor"
    ).print(literal(HOSTILE))
    assert output.getvalue() == SHOWN + "\n"


def hostile_run(make_run):
    """Return a run with markup in its folder's name and its method."""
    folder = make_run("[bold red]run[_] \x1b[31m")
    path = folder / "run.json"
    there = json.loads(path.read_text())
    there["config"]["method"]["name"] = HOSTILE
    there["config"]["name"] = HOSTILE
    path.write_text(json.dumps(there))
    return folder


def test_show_prints_text(make_run, printed):
    folder = hostile_run(make_run)
    for path in folder.glob("metrics*.h5"):
        path.write_bytes(
            b"damaged"
        )  # so that run.json is used, and a note names the folder
    tables.show(folder)
    shown_text = printed()
    assert all(letter.isprintable() or letter == "\n" for letter in shown_text)
    notes, _, row = shown_text.partition("accuracy")
    assert r"note: " in notes
    assert all(r"[bold red]run[_] \x1b[31m" in part for part in (notes, row))
    assert SHOWN in row


def test_columns_that_belong_together_may_be_missing(make_run, capsys):
    run = loading.load_run(make_run())
    left = {
        name: array for name, array in run.results.values.items() if name != "pre/mean"
    }
    run = made_up.changed(run, left)
    assert tables.list_numbers(run, "pre", "best")[:2] == ("75.00", "– (5.00)")


def test_results_behind_a_link_are_noted(make_run, tmp_path):
    folder = make_run()
    (folder / "metrics.h5").replace(tmp_path / "elsewhere")
    (folder / "metrics.h5").symlink_to(tmp_path / "elsewhere")
    assert "link" in loading.load_run(folder).notes[0]
