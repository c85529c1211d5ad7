"""Files of ``hpcfl new`` are complete: they run without changes, also from a wheel."""

import sys

import pytest
from playing import set_keys

from hpcfl.commands import new


@pytest.fixture(autouse=True)
def _forget_new_modules():
    """Forget the modules of a user that a test imported."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def test_each_kind_has_a_template():
    assert {path.stem for path in new.TEMPLATES.glob("*.txt")} == set(new.KINDS)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("experiment", []),
        ("method", ["method.name=my_method:MyMethod"]),
        ("source", ["data.dataset=my_source:source", "data.features=5"]),
        ("score", ['evaluation.scores=["my_score:MyScore"]']),
    ],
)
def test_a_new_file_runs_as_it_is(hpcfl, kind, settings):
    assert hpcfl("new", "experiment", "tried")[0] == 0
    assert hpcfl("new", kind, f"my_{kind}")[1].startswith(f"wrote my_{kind}.")
    small = ["rounds=1", "training.batch_size=50", *settings]
    options = set_keys(*small)
    assert hpcfl("run", "tried.toml", "--quiet", *options) == (0, "", "")


def test_a_new_profile_is_submitted(hpcfl):
    hpcfl("new", "experiment", "tried")
    code, printed, _ = hpcfl("new", "profile", "site")
    assert code == 0 and "hpcfl submit FILE.toml --profile site.toml" in printed
    code, printed, error = hpcfl(
        "submit", "tried.toml", "--profile", "site.toml", "--dry-run"
    )
    assert (code, error) == (0, "") and "#SBATCH --partition=cpu" in printed


def test_no_file_is_overwritten(hpcfl, tmp_path):
    (tmp_path / "mine.py").write_text("kept")
    code, _, error = hpcfl("new", "method", "mine.py")
    assert code == 2 and "mine.py: " in error
    assert (tmp_path / "mine.py").read_text() == "kept"


@pytest.mark.parametrize("name", ["my-method", "../mine", "1st", "", "json"])
def test_names_that_are_no_identifiers_or_shadow_modules_are_refused(hpcfl, name):
    code, _, error = hpcfl("new", "method", name)
    assert code == 2 and f"new method {name}: " in error
