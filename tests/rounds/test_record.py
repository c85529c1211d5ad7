"""What a round leaves behind: each client's own numbers and their summary."""

import numpy as np
import pytest
import torch

from hpcfl.rounds import record


def test_healthy_clients_have_finite_messages_state_and_losses(make_fleet):
    fleet = make_fleet()
    fleet.state = {"private": torch.zeros(5, 2), "count": torch.zeros(5, 1, dtype=torch.int64)}
    uplink = {"model": torch.zeros(5, 3), "mask": torch.ones(5, 3, dtype=torch.bool)}
    assert record.healthy(fleet, uplink).all()
    uplink["model"][1, 2] = torch.nan
    fleet.state["private"][2, 0] = -torch.inf
    fleet.losses = torch.tensor([0.0, 0, 0, torch.nan, 0])
    assert record.healthy(fleet, uplink).tolist() == [True, False, False, False, True]


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


def test_training_loss_is_the_mean_over_samples_of_the_epochs_batches(federate):
    """One full batch: the loss of the start model on the training data."""
    played = federate("fedavg", rounds=1, training={"batch_size": 100})
    setup, samples = played.prepared.setup, played.prepared.hardware.samples
    model = setup.build()
    torch.nn.utils.vector_to_parameters(setup.initial(), model.parameters())
    for client in range(5):
        x, y = samples.take(samples.train[client])
        expected = torch.nn.functional.cross_entropy(model(x), y).item()
        assert played.values["clients/train_loss"][0, client] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("clients", ["all", "cohort"])
def test_rounds_and_clients_that_are_scored(federate, every, clients):
    played = federate("fedavg", rounds=5, evaluation={"every": every, "clients": clients}, participation={"fraction": 0.4})
    pre, post = (np.isfinite(played.values[f"clients/{name}/loss"]).sum(axis=1) for name in ("pre", "post"))
    scored = np.array([round % every == 0 or round == 5 for round in range(1, 6)])
    assert pre[:-1].tolist() == np.where(scored, 5 if clients == "all" else 2, 0).tolist()
    assert post[:-1].tolist() == np.where(scored, 2, 0).tolist()
    assert pre[-1] == (5 if clients == "all" else 2) and post[-1] == 0  # the final models, in the round after the last
    assert np.isfinite(played.values["clients/train_loss"]).sum(axis=1).tolist() == [2] * 5 + [0]


def test_scoring_does_not_change_training(federate):
    digests = {federate("fedala", rounds=4, evaluation=keys, participation={"fraction": 0.4}).digest
               for keys in ({"every": 1}, {"every": 3}, {"every": 2, "clients": "cohort"})}
    assert len(digests) == 1
