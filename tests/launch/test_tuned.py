"""The launch files of the tuned table: what is fixed in them before anything runs, and
what is made of the runs.
"""

import os
import runpy
import subprocess
import tomllib
from pathlib import Path
from statistics import fmean

import pytest

import hpcfl
from hpcfl.experiment import plugins
from hpcfl.report import packed, reading, summary
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


@pytest.fixture
def packs(tmp_path):
    """Final runs of three methods over two partitions, with a chosen rate and with one
    at which nobody learns.
    """
    for name, lr in (("made", 0.1), ("made-untuned", 0.0001)):
        runs = [
            hpcfl.run(
                {
                    "rounds": 3,
                    "seed": seed,
                    "partition": {"clients": 3, "seed": seed + 1},
                    "model": {"hidden": [4]},
                    "training": {"lr": lr},
                    "method": {"name": method},
                    "evaluation": {"tune_epochs": [5], "metric": "mean"},
                },
                out=tmp_path / f"{method},{name},seed={seed}",
                progress=False,
            )
            for method in ("fedavg", "local", "fedrep")
            for seed in (0, 1)
        ]
        packed.write(runs, tmp_path / f"{name}.tar.xz")
    return tmp_path


@pytest.mark.slow
def test_a_settings_page_says_what_the_tables_say(packs):
    write = runpy.run_path(str(TUNED / "write.py"))
    write["main"]("made", packs)
    lines = (packs / "made.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    rows = {line[0].removeprefix("| "): line[1:] for line in cells}
    assert rows.keys() == {"fedavg", "local", "fedrep"}
    assert rows["local"][3] == rows["fedavg"][6] == "+0.00 ± 0.00"
    runs = summary.load_all(packs / "made.tar.xz")
    for method, (column, own, _, beside_local, *_) in rows.items():
        of_method = [one for one in runs if one.config["method"]["name"] == method]
        values = [reading.value(one, "mean", "tail").value for one in of_method]
        assert column == of_method[0].score
        assert float(own) == pytest.approx(100 * fmean(values), abs=0.006)
        gain = float(own) - float(rows["local"][1])
        assert float(beside_local.split(" ")[0]) == pytest.approx(gain, abs=0.011)
    assert lines[-3].startswith("After Holm's correction tuning gives ")


def test_the_rounds_of_a_chosen_file_are_doubled(tmp_path):
    """Behind the number a chosen file has what the key means."""
    chosen = tmp_path / "tuned" / "chosen"
    chosen.mkdir(parents=True)
    (chosen / "fedavg.toml").write_text("rounds = 40    # federated rounds (integer)\n")
    (tmp_path / "hpcfl").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "hpcfl").chmod(0o755)
    done = subprocess.run(
        ["bash", TUNED / "twice.sh", tmp_path / "tuned"],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--set rounds=80 --out" in done.stdout
