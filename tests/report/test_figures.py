"""Files of figures: those at the end of a sweep, and messages about requested ones."""

import re
import sys

import matplotlib
import pytest
from playing import call

from hpcfl.report import figures
from hpcfl.report.sheet import Sheet
from hpcfl.trained.loading import list_runs


@pytest.mark.slow
def test_a_sweep_with_one_partition_has_two_figures(make_run, tmp_path):
    make_run("fedavg")
    make_run("local", method="local", primary="post")
    paths = figures.draw(tmp_path, list_runs(tmp_path))
    assert [path.name for path in paths] == ["accuracy.png", "clients.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_ends_with_curves_before_and_after_local_training(make_run, tmp_path):
    make_run("fedavg")
    figure = figures.draw_moments(list_runs(tmp_path), Sheet(7))
    before, after = figure.axes
    points = before.lines[0].get_xydata().tolist()
    assert points == [[0, 25], [1, 75], [2, 50], [3, 62.5]]
    assert after.lines[0].get_xydata().tolist() == [[1, 50], [2, 62.5], [3, 87.5]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["fedavg"]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "beginning"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pdf_and_svg_are_written_with_fonts_that_can_be_edited(
    make_run, tmp_path, printed, form, beginning
):
    out = tmp_path / f"one.{form}"
    assert call("plot", make_run(), "--out", out, "--width", "3.3") == 0
    content = out.read_bytes()
    assert content.startswith(beginning)
    assert b"/Type3" not in content  # fonts are embedded as TrueType
    assert printed().splitlines() == [
        "note: one run each",
        f"figure: {out} (3.3 × 2.49 inches)",
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("--kind gain", "--kind = 'gain' .*'gains'"),
        (
            "--metric acuracy",
            "--metric acuracy: .*'accuracy'",
        ),
        (
            "--x secnds",
            "--x secnds: .*'seconds'",
        ),
        (
            "--kind clients --x rounds",
            "--x: .*--kind clients, .*--metric, --at, --group",
        ),
        (
            "--at last",
            "--at: .*--x KEY",
        ),
        ("--out a.jpg", "--out a.jpg: .* png, pdf, svg"),
        ("--out no/a.png", "--out no/a.png: "),
        (
            "--kind clients --metric seconds/round",
            "--metric seconds/round: .*accuracy, loss",
        ),
    ],
)
def test_an_invalid_request_is_refused_in_one_line(
    make_run, tmp_path, monkeypatch, printed_errors, asked, expected
):
    make_run()
    monkeypatch.chdir(tmp_path)
    assert call("plot", "run", *asked.split()) == 2
    error = printed_errors()
    assert error.count("\n") == 1 and re.search(expected, error)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_figures_do_not_depend_on_the_users_matplotlibrc(make_run, tmp_path):
    """They do not depend on the ``matplotlibrc`` that was read when matplotlib was
    imported.
    """
    words = ["plot", make_run(), "--out"]
    files = [tmp_path / "with.png", tmp_path / "without.png"]
    with matplotlib.rc_context({"font.size": 40, "axes.facecolor": "red"}):
        assert call(*words, files[0]) == 0
        # figures of other programs do not change
        assert matplotlib.rcParams["font.size"] == 40
    assert call(*words, files[1]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_users_kind_of_figure_is_drawn(make_run, tmp_path, monkeypatch, printed):
    """It receives the runs, the paper and the options that it names."""
    (tmp_path / "own_kind.py").write_text(
        "def last(runs, sheet, *, metric='mean'):\n"
        "    figure, (axes,) = sheet.panels(1)\n"
        "    axes.plot(runs[0].accuracy('pre'))\n"
        "    sheet.notes.append(f'of {len(runs)} run by {metric}')\n"
        "    return figure\n"
    )
    make_run()
    monkeypatch.chdir(tmp_path)
    assert call("plot", "run", "--kind", "own_kind:last", "--metric", "x") == 0
    assert printed().startswith("note: of 1 run by x\nfigure: last.png")
    assert (tmp_path / "last.png").exists()


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def bad(runs, sheet):\n    return 1 / 0\n", 2),
        ("def bad(runs):\n    return runs\n", 1),
        ("\ndef bad(runs, sheet):\n    sheet.panels(1)\n", 2),
        ("bad = 3\n", None),
    ],
)
def test_a_mistake_in_a_users_kind_names_its_line(
    make_run, tmp_path, monkeypatch, printed_errors, code, line
):
    (tmp_path / "bad_kind.py").write_text(code)
    monkeypatch.delitem(sys.modules, "bad_kind", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    make_run()
    monkeypatch.chdir(tmp_path)
    assert call("plot", "run", "--kind", "bad_kind:bad", "--out", "bad.png") == 2
    error = printed_errors()
    place = f"bad_kind.py:{line}: " if line else ""
    assert error.startswith(f"hpcfl: {place}--kind = 'bad_kind:bad'")
    assert error.count("\n") == 1 and not (tmp_path / "bad.png").exists()
