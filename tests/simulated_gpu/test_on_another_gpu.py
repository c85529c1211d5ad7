"""A run that goes on: the same bits on the same type of GPU, a line on another."""

from types import SimpleNamespace

import tiny
import torch

from hpcfl.clients import memory
from hpcfl.commands import run as command
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.storage.checkpoint import latest


def play(folder, rounds):
    """So many rounds in all, the last of them with a checkpoint; its digest."""
    table = tiny.table(
        "fedavg",
        [[4, 4, 0, 0]] * 2,
        rounds=rounds,
        checkpoint={"every": 1},
        runtime={"device": "cuda"},
    )
    command.run(config.parse(table), folder, OneProcess())
    return latest(folder / "checkpoints").digest


def test_a_resumed_run_says_that_it_has_another_gpu(gpu, tmp_path, monkeypatch, capfd):
    plain = play(tmp_path / "plain", 3)
    play(tmp_path / "resumed", 1)
    assert play(tmp_path / "resumed", 3) == plain
    shown = capfd.readouterr()
    assert "continued with other" not in shown.out + shown.err
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "another")
    play(tmp_path / "resumed", 4)
    shown = capfd.readouterr()
    words = " ".join((shown.out + shown.err).split())
    assert (
        "continued with other gpus (['simulated, CUDA" in words
        and "['another, CUDA" in words
    )


def test_a_resumed_run_says_that_it_has_other_lanes_or_ranks(
    gpu, tmp_path, monkeypatch, capfd
):
    play(tmp_path, 1)
    monkeypatch.setattr(memory, "most_lanes", lambda *given: 1)
    meta = command._meta
    monkeypatch.setattr(
        command,
        "_meta",
        lambda prepared, ranks: meta(prepared, SimpleNamespace(size=7)),
    )
    play(tmp_path, 2)
    shown = capfd.readouterr()
    words = " ".join((shown.out + shown.err).split())
    assert (
        "continued with other kernel (['cuda', 'auto', " in words
        and "['cuda', 'auto', 1] now)" in words
    )
    assert "continued with other ranks (1 before, 7 now)" in words
