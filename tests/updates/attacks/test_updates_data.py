"""Attacks on data, in whole runs; ``data/test_poison.py`` tests their samples."""

import numpy as np
import pytest
import tiny
import torch
from playing import play_on

from hpcfl.communication.communicator import OneProcess

ATTACKERS = [1, 3]
DIGITS = {
    "data": {"dataset": "digits", "samples": 400},
    "partition": {"scheme": "iid", "clients": 5},
    "training": {"lr": 0.1, "batch_size": 10},
}


def play(folder, attack, method="fedavg", **sections):
    table = tiny.table(method, attack={"clients": ATTACKERS, **attack}, **sections)
    return play_on(OneProcess(), folder, {**table, **sections})


@pytest.mark.parametrize("method", ["ditto", "fedamp"])
def test_means_are_of_honest_clients_alone(tmp_path, method):
    values = play(tmp_path, {"kind": "label-flip"}, method, rounds=2).values
    honest = [0, 2, 4]
    for column, clients in (("post", honest), ("attackers/post", ATTACKERS)):
        correct = values[f"clients/{column}/correct"][1]
        total = values[f"clients/{column}/total"][1]
        assert np.flatnonzero(~np.isnan(correct)).tolist() == clients
        weighted = np.nansum(correct) / np.nansum(total)
        assert values[f"{column}/weighted"][1] == weighted
        assert values[f"{column}/clients"][1] == len(clients)
    losses = values["clients/train_loss"][1]
    assert not np.isnan(losses).any()


@pytest.mark.slow
def test_a_later_attack_changes_no_earlier_round(tmp_path):
    attacked = play(tmp_path / "a", {"kind": "label-flip", "since": 3}, rounds=3)
    plain = play(tmp_path / "b", {"kind": "label-flip", "since": 4}, rounds=3)
    name = "clients/train_loss"
    assert np.array_equal(attacked.values[name][:2], plain.values[name][:2])
    assert attacked.digest != plain.digest


@pytest.mark.slow
def test_a_backdoor_succeeds_and_more_so_with_model_replacement(tmp_path):
    success = {}
    for kind in ("label-flip", "backdoor", "model-replacement"):
        target = {} if kind == "label-flip" else {"target": 2}
        attack = {"kind": kind, "clients": [1], **target}
        played = play(tmp_path / kind, attack, rounds=2, **DIGITS)
        found = played.values.get("pre/attack_success", np.zeros(4))
        success[kind] = found[-1]
        assert torch.isfinite(played.server["model"]).all()
    assert success["label-flip"] == 0
    assert success["model-replacement"] > 0.9
    assert success["model-replacement"] > success["backdoor"] + 0.1
