"""The launch files of the tuned table: what is fixed in them before anything runs."""

import tomllib
from pathlib import Path

import pytest

from hpcfl.tuning import plan

TUNED = Path(__file__).parents[2] / "launch" / "tuned"
SETTINGS = ["dirichlet", "rotated", "permuted", "text"]


@pytest.mark.parametrize("name", [*SETTINGS, "sham"])
def test_each_method_has_the_same_budget_and_twelve_partitions(name, monkeypatch):
    monkeypatch.syspath_prepend(str(TUNED))
    tuning = plan.read(tomllib.loads((TUNED / f"{name}.toml").read_text()), name)
    section = tuning.section
    assert len(section.final_seeds) >= 12
    for method in section.methods:
        assert "training.lr" in tuning.ranges(method)
        assert len(tuning.trials(method)) == tuning.rungs(method)[0].trials


def test_the_shams_are_drawn_for_apart(monkeypatch):
    monkeypatch.syspath_prepend(str(TUNED))
    tuning = plan.read(tomllib.loads((TUNED / "sham.toml").read_text()), "sham")
    firsts = {tuning.trials(method)[0].said for method in tuning.section.methods}
    assert len(firsts) == 8
