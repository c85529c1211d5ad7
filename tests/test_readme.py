"""The files of README and guide are written as they say, their commands and snippets
run in order, in a new folder.
"""

import inspect
import os
import re
import subprocess
from pathlib import Path

import pytest

from hpcfl.clients import Fleet
from hpcfl.clients.step_context import StepContext
from hpcfl.methods.base import Cohort
from hpcfl.methods.fedavg import FedAvg
from hpcfl.report import catalogue

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README, GUIDE = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "hpcfl/GUIDE.md")
)
BLOCKS = re.findall(
    r"^```(toml|python|bash)\n(.*?)^```$", README + GUIDE, re.DOTALL | re.MULTILINE
)
FILE = re.compile(r"# (\w+\.\w+)\n")


def test_files_commands_and_snippets_work(zygote, tmp_path):
    """In less time: clients train for one epoch in large batches, the classes are
    spread so that few draws are thrown away, and only the first run, plots and reports
    draw.
    """
    environment = {**os.environ, "PATH": zygote.path}
    no_figures = {"HPCFL_NO_FIGURES": "yes"}
    ran = 0
    for language, text in BLOCKS:
        if name := FILE.match(text):
            quick = text.replace("\nepochs = 5\n", "\nepochs = 1\n")
            quick = quick.replace("[training]\n", "[training]\nbatch_size = 100\n")
            quick = quick.replace("\nbeta = 0.1\n", "\nbeta = 1.0\n")
            (tmp_path / name[1]).write_text(quick, encoding="utf-8")
            continue
        draws = ran == 0 or re.search(r"hpcfl (plot|report) ", text)
        arguments = (
            [zygote.python, "-c", text]
            if language == "python"
            else ["bash", "-ec", text]
        )
        done = subprocess.run(
            arguments,
            cwd=tmp_path,
            env=environment if draws else {**environment, **no_figures},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        ran += 1
    assert ran >= 9
    names = {
        "first",
        "three-ranks",
        "pulled",
        "noisy",
        "momentum",
        "own-model",
        "top3",
        "mine",
        "newcomers",
        "in-turn",
        "rates",
        "lora",
        "apfl",
        "gru",
        "adapted",
    }
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names


@pytest.mark.parametrize("kind", catalogue.PAGES)
def test_tables_say_what_the_code_says(kind):
    """Else: ``python -m hpcfl.report.catalogue``."""
    listed = catalogue.entries(kind)
    page = catalogue.PAGES[kind].read_text(encoding="utf-8")
    assert catalogue.with_table(kind, page, listed) == page
    assert page.count("\n| `") >= len(listed)


@pytest.mark.parametrize(
    ("given", "kind"), [("fleet", Fleet), ("context", StepContext), ("cohort", Cohort)]
)
def test_the_guide_names_all_that_hooks_are_given(given, kind):
    chapter = GUIDE.partition("## Arguments of hooks\n")[2].partition("\n## ")[0]
    part = chapter.partition(f"`{given}.`")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)", part))
    public = {
        name
        for name in {*vars(kind), *kind.__dataclass_fields__}
        if not name.startswith("_")
    }
    assert not public - named


def test_the_guide_has_the_hooks_as_they_are_called():
    """By their arguments without a default, and what a derived method hands on."""
    chapter = GUIDE.partition("| hook |")[2].partition("\n\n")[0]
    hooks = re.findall(r"`(\w+)\((self, .*?)\)`", chapter)
    assert {
        "start",
        "store_state",
        "received",
        "local_train",
        "send",
        "aggregate",
    } <= dict(hooks).keys()
    for name, arguments in hooks:
        parameters = inspect.signature(getattr(FedAvg, name)).parameters.values()
        assert arguments == ", ".join(
            f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name
            for one in parameters
            if one.default is one.empty
        )


def test_the_speeds_are_those_that_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "benchmarks"))
    import table

    benchmarks = ROOT / "results" / "benchmarks"
    measured = table.measured(benchmarks)
    assert table.render_short(measured) in README
    page = (benchmarks / "README.md").read_text(encoding="utf-8")
    assert table.render(measured) in page


def test_a_benchmark_of_an_installed_package_has_a_table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "benchmarks"))
    import table

    measured = table.measured(ROOT / "results" / "benchmarks")
    measured["W1"] = {**measured["W1"], "commit": None}
    version = measured["W1"]["versions"]["hpcfl"]
    assert f"hpcfl {version} as installed (W1)" in table.render(measured)


LINKED = sorted(set(re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)))


@pytest.mark.parametrize(
    "path",
    [
        "launch/quickstart.sh",
        "tests/run.sh",
        "launch/quickstart.toml",
        "hpcfl/README.md",
        "launch/papers",
        "slurm/profiles",
        "slurm/README.md",
        *LINKED,
    ],
)
def test_the_files_it_names_exist(path):
    assert path in README and (ROOT / path).exists()


def test_the_first_screen_shows_a_figure_of_the_results():
    screen = README.partition("\n## ")[0]
    (figure,) = re.findall(r"!\[.+\]\((.+)\)", screen)
    assert figure.startswith("results/") and figure in LINKED


def test_there_are_as_many_methods_as_it_says():
    at_least = int(re.findall(r"\[more than (\d+)\]", README)[0])
    assert len(catalogue.entries("methods")) > at_least
