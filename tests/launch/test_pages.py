"""Every code block of README and of the site's pages runs, page by page, in order.

A block that begins with ``# NAME.EXT`` is written as this file. Other blocks run in a
folder with a finished run of the first page's experiment. Blocks of the language
``text`` belong to other tools or need files, and are not run.
"""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from playing import call

from hpcfl.clients import Fleet
from hpcfl.clients.step_context import StepContext
from hpcfl.methods.base import Cohort
from hpcfl.methods.fedavg import FedAvg
from hpcfl.updates import accounting

pytestmark = pytest.mark.slow

SITE = ROOT / "launch" / "site"
BLOCK = re.compile(r"^```(toml|python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.\w+)\n")
# These characters need a shell.
SHELL = re.compile(r"[|>$;&]|^(?!hpcfl )")
PAGES = sorted(path.relative_to(ROOT) for path in SITE.glob("*/*.md"))
RUN = [
    path
    for path in [Path("README.md"), Path("CONTRIBUTING.md"), *PAGES]
    if BLOCK.search((ROOT / path).read_text())
]


def shorten(text):
    """Return a file whose clients train for one epoch in large batches, on classes
    distributed so that few draws are rejected. A search has few rounds.
    """
    text = text.replace("rounds = 20 ", "rounds = 4 ").replace("20_000", "6_000")
    text = text.replace("rounds = 10\n", "rounds = 2\n")
    text = text.replace("\nclients = 5\n", "\nclients = 3\n")
    text = text.replace("final_seeds = [0, 1, 2]", "final_seeds = [0, 1]")
    text = text.replace("\nepochs = 5\n", "\nepochs = 1\n")
    if "[training]" not in text and "rounds = " in text:
        text += "[training]\n"
    if "batch_size" not in text:
        text = text.replace("[training]\n", "[training]\nbatch_size = 100\n")
    return text.replace("\nbeta = 0.1\n", "\nbeta = 1.0\n")


def hpcfl(line):
    """Run a command line of hpcfl in this process."""
    assert call(*shlex.split(line)[1:]) == 0, line


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return a folder with ``first.toml`` and its finished run."""
    folder = tmp_path_factory.mktemp("first")
    page = (SITE / "start" / "first-run.md").read_text(encoding="utf-8")
    (folder / "first.toml").write_text(shorten(BLOCK.search(page)[2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        hpcfl("hpcfl run first.toml")
    return folder


@pytest.fixture
def folder(first, tmp_path, monkeypatch):
    """Make a copy of the first folder the current one, whose modules are forgotten
    afterwards.
    """
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(accounting, "PRECISION", 100)  # a search for σ ends soon
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


# warnings of matplotlib and torch in a user's code
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", RUN, ids=str)
def test_code_blocks_run(page, folder, zygote):
    environment = {**os.environ, "PATH": zygote.path}
    for language, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if name := FILE.match(text):
            (folder / name[1]).write_text(shorten(text), encoding="utf-8")
        elif language == "python":
            exec(compile(text, str(page), "exec"), {"__name__": "__main__"})
        elif language == "bash":
            for line in text.splitlines():
                if SHELL.search(line):
                    subprocess.run(line, shell=True, env=environment, check=True)
                else:
                    hpcfl(line)
        else:
            pytest.fail(f"{page}: a block of {language} without a file name")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_begins_with_its_purpose_and_ends_with_a_next_step(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.match(r"# .+\n\nThis (page|tutorial|recipe) ", text)
    assert text.rstrip().rpartition("\n\n")[2].startswith("Next: ")


HOOKS = (SITE / "reference" / "hooks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "kind"), [("fleet", Fleet), ("context", StepContext), ("cohort", Cohort)]
)
def test_the_reference_names_all_that_hooks_are_given(given, kind):
    parts = HOOKS.partition(f"`{given}.`")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)", parts + HOOKS.partition("`cohort` and")[2][:80]))
    public = {
        name
        for name in {*vars(kind), *kind.__dataclass_fields__}
        if not name.startswith("_")
    }
    assert not public - named


def test_the_reference_lists_hooks_with_their_arguments():
    """The arguments without a default are compared, and the arguments that a derived
    method passes on.
    """
    chapter = HOOKS.partition("| Hook |")[2].partition("| Argument |")[0]
    hooks = dict(re.findall(r"`(\w+)\((self, .*?)\)`", chapter))
    assert {
        "update",
        "start",
        "store_state",
        "local_train",
        "send",
        "aggregate",
    } <= hooks.keys()
    for name, arguments in hooks.items():
        parameters = inspect.signature(getattr(FedAvg, name)).parameters.values()
        assert arguments == ", ".join(
            f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name
            for one in parameters
            if one.default is one.empty
        )
