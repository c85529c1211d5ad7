"""A resumed run: the same bits on the same type of GPU, a note on another one."""

from types import SimpleNamespace

import tiny
import torch

from hpcfl.commands.run import ClaimedRun, run
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation import lane_choice, prepare
from hpcfl.simulation.round_schedule import make_untimed
from hpcfl.storage.manifest import find_latest


def experiment(rounds):
    return tiny.table(
        "fedavg",
        [[4, 4, 0, 0]] * 2,
        rounds=rounds,
        checkpoint={"every": 1},
        runtime={"device": "cuda"},
    )


def play(folder, rounds):
    """Run the given number of rounds in total, with a checkpoint after the last, and
    return the digest.
    """
    run(config.parse(experiment(rounds)), folder, OneProcess())
    return find_latest(folder / "checkpoints").digest


def test_resuming_on_another_gpu_is_noted(gpu, tmp_path, monkeypatch, capfd):
    plain = play(tmp_path / "plain", 3)
    play(tmp_path / "resumed", 1)
    assert play(tmp_path / "resumed", 3) == plain
    shown = capfd.readouterr()
    assert "with other" not in shown.out + shown.err
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "another")
    play(tmp_path / "resumed", 4)
    shown = capfd.readouterr()
    words = " ".join((shown.out + shown.err).split())
    assert "with other gpus (['simulated, CUDA" in words and "['another, CUDA" in words


def test_resuming_with_other_lanes_or_ranks_is_noted(gpu, tmp_path, monkeypatch, capfd):
    play(tmp_path, 1)
    monkeypatch.setattr(lane_choice, "count_lanes", lambda **given: 1)
    describe = ClaimedRun.describe
    monkeypatch.setattr(
        ClaimedRun, "describe", lambda claimed: describe(claimed) | {"ranks": 7}
    )
    play(tmp_path, 2)
    shown = capfd.readouterr()
    words = " ".join((shown.out + shown.err).split())
    assert "with other kernel (['cuda', 'auto', " in words
    assert "['cuda', 'auto', 1] now)" in words
    assert "with other ranks (1 before, 7 now)" in words


def test_a_resumed_run_continues_with_the_stored_lanes(gpu, tmp_path):
    """On a GPU lanes determine bits: a run that is interrupted after its GPU was found
    too small equals an undisturbed run.
    """
    play(tmp_path, 1)
    newest = find_latest(tmp_path / "checkpoints")
    (wide, heads), *others = newest.meta["lanes"]
    assert wide > 1 and not others
    prepared = prepare.prepare_together(config.parse(experiment(2)), OneProcess())
    restored = SimpleNamespace(meta={"lanes": [[1, heads]]}, server=None, best=None)
    schedule = make_untimed(prepared, OneProcess())
    claimed = ClaimedRun(OneProcess(), prepared, schedule, None, restored, claim=None)
    claimed.make_federation({}, writer=None)
    assert prepared.resources.lane_limits == [1, heads]
