"""A run that goes on where it stood: damaged checkpoints, more rounds, another
configuration, --fresh.
"""

import json

import pytest
import tiny

from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.report import summary
from hpcfl.storage import results
from hpcfl.storage.checkpoint import latest

pytestmark = pytest.mark.slow


def play(folder, method="cwfedavg", rounds=6, fresh=False, **sections):
    """Run to ``rounds`` with a checkpoint every second; the digest."""
    table = tiny.table(method, rounds=rounds, checkpoint={"every": 2}, **sections)
    run(config.parse(table), folder, OneProcess(), fresh)
    return latest(folder / "checkpoints").digest


def only_of_the_newest(folder):
    """A data file that the newest checkpoint has and the one before has not."""
    manifests = sorted((folder / "checkpoints").glob("manifest-*.json"))
    names = [
        {file["name"] for file in json.loads(path.read_text())["manifest"]["files"]}
        for path in manifests[-2:]
    ]
    return folder / "checkpoints" / sorted(names[1] - names[0])[0]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [truncate, flip])
@pytest.mark.parametrize("victim", ["data", "manifest"])
@pytest.mark.parametrize(
    "method", ["cwfedavg", {"name": "fedala", "most_epochs": 5}], ids=str
)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(
    tmp_path, capsys, harm, victim, method
):
    expected = play(tmp_path / "calm", method)
    folder = tmp_path / "harmed"
    play(folder, method, rounds=4)
    newest = sorted((folder / "checkpoints").glob("manifest-*.json"))[-1]
    harm(only_of_the_newest(folder) if victim == "data" else newest)
    capsys.readouterr()
    assert play(folder, method) == expected
    said = capsys.readouterr().out
    assert (
        "continues after round 3" in said and f"{newest}: damaged checkpoint (" in said
    )
    assert results.read(folder).rounds.tolist() == list(range(1, 8))


def test_more_rounds_than_at_first_is_the_same_run(tmp_path):
    first = play(tmp_path / "run", rounds=2)
    assert (
        play(tmp_path / "run", rounds=6) == play(tmp_path / "calm", rounds=6) != first
    )


def test_fewer_rounds_than_done_are_refused(tmp_path):
    play(tmp_path / "run", rounds=4)
    with pytest.raises(
        UserError,
        match="rounds = 2: this run has done 4 already; ask for more, or --fresh",
    ):
        play(tmp_path / "run", rounds=2)


def test_another_configuration_is_refused_saying_what_differs_and_fresh_moves_the_old_one_aside(
    tmp_path,
):
    folder = tmp_path / "run"
    old = play(folder, rounds=2)
    files = sorted(path.name for path in folder.iterdir())
    with pytest.raises(
        UserError,
        match=r"belongs to another configuration \(training.lr: 0.1 there, 0.05 "
        r"here\); .*--fresh",
    ):
        play(folder, rounds=2, training={"lr": 0.05})
    assert sorted(path.name for path in folder.iterdir()) == files
    assert play(folder, rounds=2, training={"lr": 0.05}, fresh=True) != old
    (aside,) = (path for path in tmp_path.iterdir() if path != folder)
    assert aside.name.startswith("run.") and latest(aside / "checkpoints").digest == old


@pytest.mark.parametrize(
    "sections",
    [
        {"runtime": {"lanes": 3, "hang_after": 5.0}},
        {"name": "other"},
        {"checkpoint": {"every": 1}},
    ],
)
def test_where_and_how_fast_it_runs_is_not_the_runs_identity(tmp_path, sections):
    play(tmp_path / "run", rounds=2)
    table = tiny.table("cwfedavg", rounds=4, **{"checkpoint": {"every": 2}, **sections})
    run(config.parse(table), tmp_path / "run", OneProcess(), False)
    assert latest(tmp_path / "run" / "checkpoints").digest == play(
        tmp_path / "calm", rounds=4
    )


@pytest.mark.parametrize("method", ["fedrep", "apfl"])
def test_a_model_that_freezes_some_parameters_goes_on_with_them(tmp_path, method):
    lora = {"model": {"name": "tiny:lora"}}
    expected = play(tmp_path / "calm", method, **lora)
    play(tmp_path / "run", method, rounds=4, **lora)
    (tmp_path / "run" / "checkpoints" / "manifest-00000004.json").unlink()
    assert play(tmp_path / "run", method, **lora) == expected


def test_other_frozen_parameters_than_at_the_beginning_are_refused(
    tmp_path, monkeypatch
):
    """Nothing is written, and no model is taken out of the folder with them."""
    folder, lora = tmp_path / "run", {"model": {"name": "tiny:lora"}}
    play(folder, "fedavg", rounds=4, **lora)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(tiny, "WEIGHTS", [6])
    words = "the frozen or given parameters of model.name = 'tiny:lora' are not those that the"
    with pytest.raises(UserError, match=words):
        play(folder, "fedavg", **lora)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    with pytest.raises(UserError, match=words):
        summary.load(folder, {"tiny:lora", "tiny:blobs"}).model(client=0)
