"""Clients that never trained: scored after the last round, before and after their
training.
"""

import numpy as np
import pytest
import tiny
import torch
from every_method import NAMES, kind, short
from playing import prepare_alone, prepare_tiny, run_alone
from recorded import assert_alike
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import RankFailure
from hpcfl.methods.fedavg import FedAvg
from hpcfl.report import tables
from hpcfl.simulation import preflight, stages
from hpcfl.storage import results

TRAINED = tiny.COUNTS[:3]
COUNTS = [*TRAINED, [0, 5, 5, 0], [6, 0, 0, 6]]  # the last two are newcomers
BARRED = [name for name in NAMES if kind(name).no_newcomers]


def sections(epochs, **more):
    return {
        "partition": {"clients": 3},
        "newcomers": {"clients": 2, "epochs": epochs},
        **more,
    }


def newcomers(played, column, number="correct"):
    """Return a number of the newcomers in a column, after the last round."""
    values = played.values[f"clients/newcomers/{column}/{number}"]
    assert np.isnan(values[:-1]).all() and np.isnan(values[-1, :3]).all()
    return values[-1, 3:]


@pytest.mark.parametrize("warmup", [0, 5])
def test_fedavg_by_hand(federate, warmup):
    """A newcomer starts with the global model. One epoch of one full batch is one step
    on its samples, with the full learning rate, independent of the other clients'
    warm-up.
    """
    training = {"batch_size": 100, "lr": 0.2, "warmup": warmup}
    keys = sections(1, rounds=2, model={"hidden": []}, training=training)
    played = federate("fedavg", COUNTS, **keys)
    samples, layout = played.prepared.resources.samples, played.prepared.setup.layout
    start = layout.split(played.server["model"].double())
    for position, client in enumerate((3, 4)):
        x, y = samples.take(samples.train[client])
        test, labels = samples.take(samples.test[client])
        x, test = x.double(), test.double()
        weight, bias = start["head.weight"], start["head.bias"]
        error = (x @ weight.T + bias).softmax(dim=1) - torch.nn.functional.one_hot(y, 4)
        # w − lr·(1/N) Σ (p − e_y) xᵀ
        after = weight - 0.2 * error.T @ x / len(y), bias - 0.2 * error.mean(dim=0)
        for column, model in {"before": (weight, bias), "after": after}.items():
            logits = test @ model[0].T + model[1]
            correct = (logits.argmax(dim=1) == labels).sum()
            assert newcomers(played, column)[position] == correct
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            found = newcomers(played, column, "loss")[position]
            assert found == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in BARRED])
def test_newcomers_change_no_bit_in_any_method(federate, name):
    """The state equals that of a run without newcomers, with the same partition of the
    other clients.
    """
    method = short(name)
    alone = federate(method, tiny.FEW[:3], rounds=1)
    with_them = federate(method, tiny.FEW, rounds=1, **sections(1))
    assert with_them.digest == alone.digest
    for value in ("clients/pre/loss", "clients/post/loss", "clients/train_loss"):
        found = with_them.values[value][:, :3]
        np.testing.assert_array_equal(found, alone.values[value])
    before, after = (
        newcomers(with_them, column, "loss") for column in ("before", "after")
    )
    assert np.isfinite(before).all() and not np.array_equal(before, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ditto", "apfl", "pfedme", "fedphp", "partialfed", "fedala"]
)
def test_a_personal_model_begins_as_the_global_one(federate, name):
    """In their round 1 FedALA's clients blend nothing, and this is a newcomer's only
    round.
    """
    played = federate(name, COUNTS, rounds=2, **sections(0))
    assert "newcomers/after/weighted" not in played.values
    assert played.values["newcomers/before/clients"][-1] == 2
    setup, samples = played.prepared.setup, played.prepared.resources.samples
    model, shared = setup.build(), setup.layout.split(played.server["model"])
    for client, loss in zip((3, 4), newcomers(played, "before", "loss"), strict=True):
        x, y = samples.take(samples.test[client])
        logits = torch.func.functional_call(model, shared, (x,))
        expected = torch.nn.functional.cross_entropy(logits, y, reduction="sum").item()
        assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", BARRED)
def test_a_method_without_a_model_for_newcomers_is_refused(name):
    with expect_refusal(rf"^newcomers\.clients = 2: {name} "):
        prepare_tiny(name, COUNTS, **sections(0))


def test_too_few_clients_for_both_are_refused():
    table = tiny.table("fedavg", **sections(0))
    table["partition"] = {"scheme": "iid", "clients": 239}
    with expect_refusal(r"clients = 241: .* 240 samples .*newcomers\.clients = 2"):
        prepare_alone(table)


class Forgetful(FedAvg):
    """FedAvg whose message requires state of the server about its clients."""

    def send(self, server, audience):
        counts = audience.setup.counts[audience.ids, :1]
        return {"model": server["model"] + 0 * counts.float()}


def test_the_preflight_tries_a_users_method_with_a_newcomer():
    prepared = prepare_tiny("test_newcomers:Forgetful", COUNTS, **sections(1))
    with expect_refusal(r"test_newcomers\.py:\d+: .*Forgetful' .*'send': IndexError"):
        preflight.run(prepared, OneProcess())


@pytest.mark.slow
def test_newcomers_are_scored_again_after_a_kill(tmp_path, monkeypatch):
    def play(folder):
        table = tiny.table("fedavg", COUNTS, checkpoint={"every": 1}, **sections(1))
        run_alone(table, folder)
        return results.read(folder)

    calm = play(tmp_path / "calm")

    def fail_after_a_checkpoint(*_):
        assert not list((tmp_path / "hit").glob("checkpoints/m*"))

    with monkeypatch.context() as patch:
        patch.setattr(stages, "train_newcomers", fail_after_a_checkpoint)
        with pytest.raises(RankFailure, match="after the last round, clients 3, 4"):
            play(tmp_path / "hit")
    again = play(tmp_path / "hit")
    assert again.completed == calm.completed == [3]
    assert_alike(calm.values, again.values)


@pytest.mark.slow
def test_newcomers_are_in_tables_and_frames(played, monkeypatch, printed):
    monkeypatch.setenv("COLUMNS", "80")
    found = played("fedavg", **sections(4, partition={"clients": 3, "counts": COUNTS}))
    before, after = (
        found.accuracy(f"newcomers/{column}")[-1] for column in ("before", "after")
    )
    assert found.summary.newcomers == {"before": before, "after": after} and before > 0
    frame = found.clients()
    columns = ["newcomers/before/accuracy", "newcomers/after/accuracy"]
    own = frame.loc[4]
    assert own.loc[[0, 1, 2], columns].isna().all(axis=None)
    new = own.loc[[3, 4]]
    assert new["test_samples"].nunique() == 1
    assert new[columns].mean().tolist() == pytest.approx([before, after])
    tables.show(found.folder)
    lines = [line.split() for line in printed().splitlines()]
    assert ["new", f"{100 * before:.2f}"] in [line[:2] for line in lines]
    assert ["tuned", f"{100 * after:.2f}"] in [line[:2] for line in lines]
