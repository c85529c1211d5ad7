"""A run that goes on: the same bits on the same type of GPU, a line on another."""

import tiny
import torch

from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.storage.checkpoint import latest


def play(folder, rounds):
    """So many rounds in all, the last of them with a checkpoint; its digest."""
    table = tiny.table("fedavg", [[4, 4, 0, 0]] * 2, rounds=rounds, checkpoint={"every": 1},
                       runtime={"device": "cuda"})
    run(config.parse(table), folder, OneProcess())
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
    assert "continued with other gpus (['simulated, CUDA" in words and "['another, CUDA" in words
