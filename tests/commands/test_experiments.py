import os
import signal
import sys
import tomllib

import pytest
from refusals import expect_refusal

from hpcfl.commands.check import check_file
from hpcfl.commands.experiments import make_plan, run_file, run_plan
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import Interrupted
from hpcfl.experiment import config
from hpcfl.files import output
from hpcfl.simulation import signals

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


def test_check_reports_a_sourceless_value_once_for_all_cells(tmp_path, capsys):
    (tmp_path / "sweep.toml").write_text(
        "protocol = 'fedala'\n"
        + SWEEP.replace("[model]", "[data]\ndataset = 'digits'\n[model]\nname = 'mlp'")
    )
    check_file(tmp_path / "sweep.toml", [], OneProcess())
    printed = capsys.readouterr().out
    assert printed.count("method.tune_epochs = 10: ") == 1


@pytest.mark.slow
def test_a_smaller_sweep_notes_the_cells_of_an_earlier_one(
    tmp_path, printed, monkeypatch
):
    (tmp_path / "sweep.toml").write_text(
        "name = 'grid'\n" + SWEEP.replace("fedavg-c", "fedavg")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for seeds in ("[0, 1]", "[0]"):
        run_file(
            tmp_path / "sweep.toml", [f"sweep.seed={seeds}"], None, False, OneProcess()
        )
    output = printed()
    assert output.count("runs/grid also has ") == 1
    assert "2 runs" in output and "such as seed=1,fedavg;" in output


def test_a_stop_after_the_last_vote_of_a_run_stops_the_sweep(tmp_path):
    """A run of one round reports the stop after the final scoring, when signals are no
    longer checked.
    """
    signals.remember()
    (tmp_path / "sweep.toml").write_text(SWEEP)
    cells = []

    def stop(name, round, values):
        if not cells:  # a later second signal would end this process
            os.kill(os.getpid(), signal.SIGTERM)
        cells.append(name)

    table = config.read(tmp_path / "sweep.toml")
    plan = make_plan(table, "sweep.toml", tmp_path / "out")
    with pytest.raises(Interrupted):
        run_plan(plan, False, OneProcess(), stop)
    assert len(set(cells)) == 1


def test_a_stopped_fresh_sweep_names_the_cells_that_keep_their_results(
    tmp_path, printed
):
    """The second cell receives the stop before its first round."""
    signals.remember()
    plan = make_plan(tomllib.loads(SWEEP), "sweep.toml", tmp_path)
    with output.suppress_lines():
        run_plan(plan, False, OneProcess())
    started = []

    def stop(name, round, values):
        if not started:
            os.kill(os.getpid(), signal.SIGTERM)
        started.append(name)

    with pytest.raises(Interrupted) as stopped:
        run_plan(plan, True, OneProcess(), stop)
    assert stopped.value.begun  # the first cell has
    [note] = [line for line in printed().splitlines() if line.startswith("note: ")]
    first, *later = plan.cells
    assert all(name in note for name in later) and first not in note


def test_a_mistake_in_any_cell_is_refused_before_the_first(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(SWEEP + 'data.dataset = ["digits", "digitz"]\n')
    with expect_refusal(r"data\.dataset = 'digitz' "):
        run_file(file, [], tmp_path / "out", False, OneProcess())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["run.json", "tune.json"])
def test_a_sweep_is_not_mixed_with_other_results(tmp_path, name):
    (tmp_path / name).write_text("{}")
    table = tomllib.loads(SWEEP)
    with expect_refusal(rf"^{tmp_path}: .* --out or name$"):
        make_plan(table, "sweep.toml", tmp_path).record()
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("out", ["d/" * 1500, os.fsdecode(b"caf\xe9"), "x" * 300])
def test_a_folder_that_cannot_be_used_shows_before_anything_begins(tmp_path, out):
    file = tmp_path / "grid.toml"
    file.write_text(SWEEP)
    with expect_refusal(r" --out$"):
        run_file(file, [], tmp_path / out, False, OneProcess())
    assert os.listdir(tmp_path) == ["grid.toml"]
