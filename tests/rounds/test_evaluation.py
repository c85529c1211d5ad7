"""Accuracies of a round, fairness, distances of distributions: protocols.md E2."""

import math

import numpy as np
import pytest
import tiny
import torch

from hpcfl import trial
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.preparation.prepare import prepare
from hpcfl.rounds import evaluation
from hpcfl.rounds.federation import Federation
from hpcfl.rounds.signals import StopRequest
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.metrics import MetricsWriter
from hpcfl.storage.results import read

NAN = math.nan


def test_e2_the_summary_over_clients():
    correct, total = np.array([9.0, 1.0, NAN, 0.0, 0.0]), np.array([10.0, 2.0, NAN, 0.0, 5.0])
    assert evaluation.summary(correct, total) == pytest.approx(
        {"weighted": 10 / 17, "mean": 1.4 / 3, "std": math.sqrt((0.9 ** 2 + 0.5 ** 2) / 3 - (1.4 / 3) ** 2), "worst_tenth": 0.0})
    many = evaluation.summary(np.arange(20.0), np.full(20, 20.0))
    assert many["worst_tenth"] == pytest.approx((0 + 0.05) / 2)  # two of twenty
    assert all(math.isnan(value) for value in evaluation.summary(np.array([NAN]), np.array([NAN])).values())


def test_e2_personalised_accuracies_are_the_papers():
    by_class = torch.tensor([[8.0, 5.0, 0.0], [2.0, 2.0, 10.0]])
    tested, trained = torch.tensor([10.0, 10.0, 10.0]), torch.tensor([[30.0, 10.0, 0.0], [0.0, 0.0, 7.0]])
    found = evaluation.personalised(by_class, tested, trained)
    assert found["pm_v"].tolist() == pytest.approx([13 / 20, 1.0])  # mean recall of the classes held
    assert found["pm_l"].tolist() == pytest.approx([0.75 * 0.8 + 0.25 * 0.5, 1.0])  # recalls weighted by share


def test_mean_and_std_leave_out_who_has_no_number():
    assert evaluation.mean_and_std(np.array([1.0, NAN, 3.0])) == (2.0, 1.0)
    assert all(map(math.isnan, evaluation.mean_and_std(np.array([NAN]))))


@pytest.fixture
def spiral(tmp_path):
    """``spiral(method, …)``: two rounds on the spiral, tested globally; what was prepared and recorded."""
    def run(method, scheme="dirichlet-min", **evaluated):
        table = {"rounds": 2, "data": {"dataset": "spiral-imbalanced"}, "partition": {"scheme": scheme, "clients": 6},
                 "model": {"name": "mlp", "hidden": [16]}, "method": {"name": method} if isinstance(method, str) else method,
                 "training": {"batch_size": 50, "lr": 0.1}, "evaluation": evaluated}
        alone = OneProcess()
        prepared = prepare(config.parse(table), alone)
        Federation(alone, prepared, prepared.server, Checkpoints(tmp_path / "checkpoints", alone),
                   MetricsWriter(tmp_path, {}, {}), {}, lambda round, values: None).run(0, StopRequest(lambda: None))
        return prepared, read(tmp_path).values
    return run


def test_e2_a_global_test_set_gives_personalised_accuracies(spiral):
    prepared, values = spiral("local", metric="pm_l")
    assert prepared.split.global_test and prepared.test_counts.tolist() == [[100] * 6] * 6
    models = prepared.store.get(prepared.store.ids)["model"]
    samples, module = prepared.hardware.samples, prepared.setup.build().eval()
    x, y = samples.take(samples.test[0])
    for client, row in enumerate(models):
        for name, parameter in module.named_parameters():
            parameter.data = prepared.setup.layout.split(row)[name]
        right = module(x).argmax(1) == y
        recall = torch.stack([right[y == c].double().mean() for c in range(6)])
        share = prepared.setup.counts[client] / prepared.setup.counts[client].sum()
        assert values["clients/post/pm_v"][0, client] == pytest.approx(recall[share > 0].mean().item())
        assert values["clients/post/pm_l"][0, client] == pytest.approx((share * recall).sum().item())
    assert values["post/pm_l"][0] == pytest.approx(values["clients/post/pm_l"][0].mean())
    assert values["post/pm_l_std"][0] == pytest.approx(values["clients/post/pm_l"][0].std())


def test_a_shared_model_is_scored_once_for_all(spiral, monkeypatch):
    from hpcfl.fleet import scoring

    counted, real = [], scoring.score
    monkeypatch.setattr(scoring, "score", lambda kernel, tensors, samples, pools, *rest: (
        counted.append(len(pools)), real(kernel, tensors, samples, pools, *rest))[1])
    _, values = spiral("fedavg")
    assert counted == [1, 6, 1, 6, 1]  # the global model, the trained ones; at the end the last global model
    for name in ("correct", "loss", "pm_v"):
        column = values[f"clients/global/{name}"][-1]
        assert len(column) == 6 and (name == "pm_v" or len(set(column)) == 1)
    assert values["global/weighted"][-1] == values["clients/global/correct"][-1, 0] / 600


def test_personalised_accuracy_needs_a_global_test_set(spiral):
    with pytest.raises(UserError, match=r"'pm_v' needs all clients tested on the same samples.*'iid' gives each its own"):
        spiral("fedavg", scheme="iid", metric="pm_v")


def test_local_test_sets_have_no_personalised_accuracies(spiral):
    _, values = spiral("fedavg", scheme="iid")
    assert "post/weighted" in values and not [name for name in values if "pm_" in name]


def test_e2_cwfedavg_notes_how_far_its_distributions_are_off(spiral):
    prepared, values = spiral({"name": "cwfedavg", "distribution": "norm"})
    truth = prepared.setup.counts / prepared.setup.counts.sum(dim=1, keepdim=True)
    distance = (prepared.server["distributions"] - truth).norm(dim=1)  # of the last uploads
    assert values["clients/notes/distribution_distance"][1].tolist() == pytest.approx(distance.tolist())
    assert values["notes/distribution_distance"][1] == pytest.approx(distance.mean().item())


def test_an_unknown_score_is_refused_with_those_there_are():
    prepared = prepare(config.parse(tiny.table("ditto", evaluation={"score": "pots", "every": 2})), OneProcess())
    with pytest.raises(UserError, match="'pots': ditto records global, post, pre; 'method' takes its own, post"):
        trial.run(prepared, OneProcess())


def test_a_methods_own_score_may_come_at_the_end_only(federate):
    assert "tuned/weighted" in federate("fedbabu", evaluation={"score": "tuned"}).values
