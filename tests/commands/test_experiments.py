import json
import sys

import pytest
import tiny

from hpcfl.commands.experiments import check_file, make_plan, run_file
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config

SWEEP = """
rounds = 1
[partition]
scheme = "iid"
clients = 4
[model]
hidden = [4]
[sweep]
seed = [0, 1]
method.name = ["local", "fedavg-c"]
"""


def test_check_names_once_what_has_no_source_in_any_cell(tmp_path, capsys):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    check_file(tmp_path / "sweep.toml", [], OneProcess())
    printed = capsys.readouterr().out
    assert printed.count("note: method.tune_epochs = 10: FedALA does not print it") == 1


def test_a_sweep_that_lost_cells_says_that_they_count(tmp_path, capsys, monkeypatch):
    (tmp_path / "sweep.toml").write_text(
        "name = 'grid'\n" + SWEEP.replace("fedavg-c", "fedavg")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for seeds in ("[0, 1]", "[0]"):
        run_file(
            tmp_path / "sweep.toml", [f"sweep.seed={seeds}"], None, False, OneProcess()
        )
    said = capsys.readouterr().out
    assert said.count("not in this sweep any more") == 1
    assert (
        "runs/grid also has runs that are not in this sweep any more, 2 in all, such as seed=1,fedavg;"
        in said
    )


@pytest.mark.parametrize(
    ("begun", "asked", "seed"),
    [({"seed": 1}, {}, 1), ({}, {}, 4), ({"seed": 1}, {"seed": 7}, 7), (None, {}, 4)],
)
def test_a_run_goes_on_with_the_partition_that_it_began_with(
    tmp_path, begun, asked, seed
):
    """Runs from before the partition's seed followed the experiment's, which is 3, have 1 in run.json."""
    if begun is not None:
        old = config.parse(tiny.table("fedavg", partition=begun))
        text = json.dumps({"identity": old.identity(), "config": old.resolved()})
        (tmp_path / "run.json").write_text(text)
    plan = make_plan(tiny.table("fedavg", partition=asked), "f.toml", tmp_path)
    assert plan.cells[0].config.partition.seed == seed
    anew = make_plan(
        tiny.table("fedavg", partition=asked), "f.toml", tmp_path, fresh=True
    )
    assert anew.cells[0].config.partition.seed == asked.get("seed", 4)
