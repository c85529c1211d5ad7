"""FedBABU: methods-2.md §9."""

import numpy as np
import torch
from by_hand import loss_of
from test_fedrep import phases


def test_the_head_never_changes(federate, monkeypatch):
    """This includes item 10c: weight decay and momentum would change a head that is
    frozen only by a step of size 0.
    """
    training = {"momentum": 0.9, "weight_decay": 0.1}
    played, calls = phases(
        federate, monkeypatch, method="fedbabu", rounds=3, training=training
    )
    head = played.prepared.setup.layout.columns("head")
    initial = played.prepared.setup.initial()[head]
    assert torch.equal(played.server["model"][head], initial)
    assert len(calls) == 4  # fine-tuning in the last round
    for start, ended in calls[:3]:
        assert (start[:, head] == initial).all() and (ended[:, head] == initial).all()
        assert (start[:, : head.start] != ended[:, : head.start]).any(dim=1).all()


def test_without_fine_tuning_the_result_is_the_global_model(federate):
    values = federate({"name": "fedbabu", "tune_epochs": 0}, rounds=2).values
    np.testing.assert_array_equal(
        values["clients/tuned/loss"][-1], values["clients/global/loss"][-1]
    )
    tuned = federate("fedbabu", rounds=2).values
    assert (tuned["clients/tuned/loss"][-1] != tuned["clients/global/loss"][-1]).all()


def test_fine_tunes_the_global_model_also_of_clients_never_sampled(
    federate, monkeypatch
):
    part = {"rounds": 2, "participation": {"fraction": 0.4}}
    played, calls = phases(federate, monkeypatch, method="fedbabu", **part)
    assert (calls[-1][0] == played.server["model"]).all()
    local, calls = phases(
        federate, monkeypatch, method={"name": "fedbabu", "tune_from": "local"}, **part
    )
    assert torch.equal(local.server["model"], played.server["model"])
    assert torch.equal(calls[-1][0], local.clients["local"])
    assert (calls[-1][0] == played.prepared.setup.initial()).all(dim=1).any()


def test_fine_tuning_uses_the_next_rounds_learning_rate(federate, monkeypatch):
    """One full batch: a single step of gradient descent at η_3 = 0.1·0.5² = 0.025."""
    played, calls = phases(
        federate,
        monkeypatch,
        method={"name": "fedbabu", "tune_epochs": 1},
        counts=[[6, 3, 2, 1]],
        rounds=2,
        training={
            "batch_size": 100,
            "lr": 0.1,
            "lr_decay": 0.5,
        },
    )
    start = calls[-1][0][0].requires_grad_()
    fleet = played.prepared.make_fleet(np.arange(1), 3, is_scored=False)
    (gradient,) = torch.autograd.grad(loss_of(fleet, 0, start), start)
    torch.testing.assert_close(calls[-1][1][0], (start - 0.025 * gradient).detach())
