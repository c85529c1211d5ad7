"""The launch files of the tuned table: what is fixed in them before anything runs."""

import tomllib
from pathlib import Path

import pytest

from hpcfl.experiment import plugins
from hpcfl.tuning import plan

TUNED = Path(__file__).parents[2] / "launch" / "tuned"
SETTINGS = ["dirichlet", "rotated", "permuted", "text"]
LEFT_OUT = {"fedbn"}  # needs a model with batch norm


def read(name, cell):
    """A tuning, of whose methods only the one with this run is looked at."""
    return plan.read(tomllib.loads((TUNED / f"{name}.toml").read_text()), name, cell)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_method_but_those_left_out_is_tuned_over_twelve_partitions(
    name, monkeypatch
):
    monkeypatch.syspath_prepend(str(TUNED))
    tuning = read(name, "fedala,")
    section = tuning.section
    assert set(section.methods) == {*plugins.names("hpcfl.methods")} - LEFT_OUT
    assert len(section.final_seeds) >= 12
    assert {"training.lr", "method.layers"} <= tuning.ranges("fedala").keys()
    assert len(tuning.trials("fedala")) == section.trials


@pytest.mark.slow
def test_all_settings_search_alike(monkeypatch):
    monkeypatch.syspath_prepend(str(TUNED))
    sections = [read(name, "local,").section for name in SETTINGS]
    for one in sections[1:]:
        same = {"methods", "trials", "rungs", "eta", "search_seeds", "final_seeds"}
        assert one.model_dump(include=same) == sections[0].model_dump(include=same)


def test_the_shams_try_the_same(monkeypatch):
    monkeypatch.syspath_prepend(str(TUNED))
    tuning = read("sham", "fedavg,")
    tried = {
        tuple(trial.said for trial in tuning.trials(method))
        for method in tuning.section.methods
    }
    assert len(tuning.section.methods) == 8 and len(tried) == 1
