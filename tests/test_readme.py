"""README names files that exist and numbers that were measured."""

import re
from pathlib import Path

import pytest

from hpcfl.report import catalogue

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", catalogue.PAGES)
def test_tables_agree_with_the_code(kind):
    """If it fails, run ``python -m hpcfl.report.catalogue``."""
    listed = catalogue.list_entries(kind)
    page = catalogue.PAGES[kind].read_text(encoding="utf-8")
    assert catalogue.replace_table(kind, page, listed) == page
    assert page.count("\n| `") >= len(listed)


def test_the_speeds_are_those_that_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "benchmarks"))
    import table

    benchmarks = ROOT / "results" / "benchmarks"
    measured = table.read_measurements(benchmarks)
    assert table.render_short(measured) in README
    page = (benchmarks / "README.md").read_text(encoding="utf-8")
    assert table.render(measured) in page
    details = (benchmarks / "details.md").read_text(encoding="utf-8")
    assert table.render_details(measured) in details
    methods = (benchmarks / "pfllib.md").read_text(encoding="utf-8")
    assert table.render_methods(measured) in methods


def test_a_benchmark_of_an_installed_package_has_a_table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "benchmarks"))
    import table

    measured = table.read_measurements(ROOT / "results" / "benchmarks")
    measured["W1"] = {**measured["W1"], "commit": None}
    version = measured["W1"]["versions"]["hpcfl"]
    assert f"hpcfl {version} as installed (W1)" in table.render_details(measured)


LINKED = sorted(set(re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)))


@pytest.mark.parametrize(
    "path",
    [
        "launch/quickstart.sh",
        "tests/run.sh",
        "hpcfl/README.md",
        "slurm/README.md",
        *LINKED,
    ],
)
def test_the_files_it_names_exist(path):
    assert path in README and (ROOT / path).exists()


def test_the_introduction_shows_a_figure_of_the_results():
    screen = README.partition("\n## ")[0]
    (figure,) = re.findall(r"!\[.+\]\((.+)\)", screen)
    assert figure.startswith("results/") and figure in LINKED


def test_there_are_more_methods_than_stated():
    at_least = int(re.findall(r"\[more than (\d+)\]", README)[0])
    assert len(catalogue.list_entries("methods")) > at_least


def test_the_readme_has_at_most_150_lines():
    assert len(README.splitlines()) <= 150
