"""Records of a round: each client's numbers and their summary."""

import numpy as np
import own_scores
import pytest
import tiny
import torch
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.files import scratch
from hpcfl.simulation import preflight, record, score_check


@pytest.mark.parametrize("at_once", [8, scratch.PART_BYTES])
def test_healthy_clients_have_finite_messages_state_and_losses(
    make_fleet, monkeypatch, at_once
):
    monkeypatch.setattr(scratch, "PART_BYTES", at_once)
    fleet = make_fleet()
    fleet.state = {"private": torch.zeros(5, 2), "count": torch.zeros(5, 1).long()}
    fleet.state["number"] = torch.zeros(5)  # declared as torch.tensor(0.0)
    uplink = {"model": torch.zeros(5, 3), "mask": torch.ones(5, 3).bool()}
    assert record.find_finite(fleet, uplink).all()
    uplink["model"][1, 2] = torch.nan
    fleet.state["private"][2, 0] = -torch.inf
    fleet.state["number"][4] = torch.nan
    fleet.results.losses = torch.tensor([0.0, 0, 0, torch.nan, 0])
    assert record.find_finite(fleet, uplink).int().tolist() == [1, 0, 0, 0, 0]


def test_a_clients_numbers_and_their_summary_by_hand(federate):
    played = federate("fedavg", rounds=1)
    values = played.values
    correct, total = values["clients/pre/correct"][0], values["clients/pre/total"][0]
    accuracy = correct / total
    assert total.tolist() == [40, 40, 60, 40, 80]
    assert values["pre/weighted"][0] == correct.sum() / total.sum()
    assert values["pre/mean"][0] == pytest.approx(accuracy.mean())
    assert values["pre/std"][0] == pytest.approx(accuracy.std())
    assert values["pre/worst_tenth"][0] == accuracy.min()


@pytest.mark.parametrize("name", ["FewNumbers", "FewSums"])
def test_a_score_for_fewer_clients_in_a_later_round_is_refused(
    make_fleet, rows_of, name
):
    """The trial of scores has three clients, the fleet five."""
    fleet = make_fleet()
    score = getattr(own_scores, name)()
    score_check.check(name, score, 4, torch.device("cpu"))
    fleet.resources.scores[name] = score
    with expect_refusal(rf"own_scores.py:\d+: .*'{name}' .* for \d clients"):
        fleet.score("pre", rows_of(fleet))
        record.compute_numbers(fleet)


def test_training_loss_is_the_mean_over_samples_of_the_epochs_batches(federate):
    """With one full batch it is the loss of the start model on the training data."""
    played = federate("fedavg", rounds=1, training={"batch_size": 100})
    setup, samples = played.prepared.setup, played.prepared.resources.samples
    model = setup.build()
    torch.nn.utils.vector_to_parameters(setup.initial(), model.parameters())
    for client, loss in enumerate(played.values["clients/train_loss"][0]):
        x, y = samples.take(samples.train[client])
        expected = torch.nn.functional.cross_entropy(model(x), y).item()
        assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("clients", ["all", "cohort"])
def test_rounds_and_clients_that_are_scored(federate, every, clients):
    played = federate(
        "fedavg",
        rounds=5,
        evaluation={"every": every, "clients": clients},
        participation={"fraction": 0.4},
    )
    pre, post = (
        np.isfinite(played.values[f"clients/{name}/loss"]).sum(axis=1)
        for name in ("pre", "post")
    )
    scored = np.array([round % every == 0 or round == 5 for round in range(1, 6)])
    known = 5 if clients == "all" else 2
    assert pre[:-1].tolist() == (known * scored).tolist()
    assert post[:-1].tolist() == (2 * scored).tolist()
    # the final models, in the round after the last
    assert (pre[-1], post[-1]) == (known, 0)
    trained = np.isfinite(played.values["clients/train_loss"]).sum(axis=1)
    assert trained.tolist() == [2] * 5 + [0]


@pytest.mark.slow
def test_scoring_does_not_change_training(federate):
    method = {"name": "fedala", "most_epochs": 5}
    sections = {"rounds": 4, "participation": {"fraction": 0.4}}
    digests = {
        federate(method, evaluation=keys, **sections).digest
        for keys in ({"every": 1}, {"every": 3}, {"every": 2, "clients": "cohort"})
    }
    assert len(digests) == 1


def test_cwfedavg_records_the_error_of_its_distributions(federate):
    played = federate({"name": "cwfedavg", "distribution": "norm"}, rounds=2)
    values, counts = played.values, played.prepared.setup.counts
    truth = counts / counts.sum(dim=1, keepdim=True)
    # of the last uploads
    distance = (played.server["distributions"] - truth).norm(dim=1).numpy()
    name = "recorded/distribution_distance"
    assert values[f"clients/{name}"][1] == pytest.approx(distance)
    assert values[name][1] == pytest.approx(distance.mean())
    assert values[f"{name}_std"][1] == pytest.approx(distance.std())


def test_an_unknown_column_is_refused_with_those_there_are():
    evaluation = {"score": "pots", "every": 2}
    prepared = prepare_tiny("ditto", evaluation=evaluation)
    with expect_refusal(r"evaluation\.score = 'pots': ditto .*global, post, pre;"):
        preflight.run(prepared, OneProcess())


def test_a_methods_own_column_may_come_at_the_end_only(federate):
    assert "tuned/weighted" in federate("fedbabu", evaluation={"score": "tuned"}).values


def full_batch(federate, method, **keys):
    """Run one round with one full batch, so that the recorded losses are those of the
    start models.
    """
    played = federate(method, rounds=1, training={"batch_size": 100, **keys})
    return first_losses(played)


def first_losses(played):
    """Return the training losses and the data losses of round 1."""
    values = played.values
    return values["clients/train_loss"][0], values["clients/data_loss"][0]


@pytest.mark.parametrize("method", ["cwfedavg", "fedproto", "feduv", "fedphp"])
def test_regularisers_of_a_loss_are_in_the_training_loss_alone(federate, method):
    """The data loss of the first batch is FedAvg's. FedProto has no prototypes in round
    1, and FedPHP's inherited model is the model in training, so (1 − λ)·CE remains.
    """
    train, data = full_batch(federate, method)
    np.testing.assert_allclose(data, full_batch(federate, "fedavg")[1], rtol=1e-5)
    if method == "fedphp":
        np.testing.assert_allclose(train, 0.99 * data, rtol=1e-5)
    elif method == "fedproto":
        np.testing.assert_array_equal(train, data)
    else:
        assert (train > data + 1e-3).all()


def test_the_training_loss_has_the_proximal_term_of_the_trained_model(federate):
    """With one client the server's model is the trained one: μ/2·‖w − w₀‖²."""
    played = federate({"name": "fedprox", "mu": 0.7}, tiny.COUNTS[:1], rounds=1)
    step = (played.server["model"] - played.prepared.setup.initial()).double()
    train, data = first_losses(played)
    moved = step.square().sum().item()
    assert train[0] - data[0] == pytest.approx(0.35 * moved, rel=1e-5)


@pytest.mark.parametrize(
    ("method", "adds"),
    [
        ({"name": "ditto", "lam": 1.0, "personal_epochs": 2}, True),
        ({"name": "ditto", "lam": 0.0}, False),
        ({"name": "pfedme", "lam": 15.0}, True),
        ({"name": "apple", "mu": 1.0, "relation_lr": 0.1}, True),
    ],
)
def test_terms_of_a_methods_own_steps_are_in_the_training_loss(federate, method, adds):
    training = {"epochs": 2, "lr": 0.01}
    train, data = first_losses(federate(method, rounds=1, training=training))
    assert (train > data).all() if adds else (train == data).all()


def test_a_client_without_a_step_has_no_training_loss(make_fleet, rows_of):
    """Client 1 has fewer samples than a mini-batch."""
    fleet = make_fleet([[8, 0, 0, 0], [1, 2, 0, 0]], batch_size=4, drop_last=True)
    fleet.train(rows_of(fleet))
    numbers = record.compute_numbers(fleet, {}, torch.ones(2).bool())
    for name in ("train_loss", "data_loss"):
        assert np.isnan(numbers[name]).tolist() == [False, True]
