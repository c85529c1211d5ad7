"""FedAvg: methods-1.md §4.2."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import take_softmax_steps

from hpcfl.methods.fedavg import FedAvg


@pytest.fixture
def aggregated(arrived, cohort):
    """Return ``aggregated(counts, rows)``, which returns the server's model after
    uploads [n, P] of clients with these counts.
    """

    def make(counts, rows, **keys):
        method, server = FedAvg(name="fedavg", **keys), {}
        fleet = SimpleNamespace(samples=torch.tensor(counts).double().sum(dim=1))
        message = method.upload(fleet, {}, rows)
        method.aggregate(server, cohort(counts), arrived(message))
        return server["model"]

    return make


def test_the_mean_by_samples_and_the_plain_mean_by_hand(aggregated):
    # N = (1, 3): w = (1·0 + 3·4)/4 = 3, and (1·8 + 3·(−4))/4 = −1; unweighted 2 and 2
    rows = torch.tensor([[0.0, 8.0], [4.0, -4.0]])
    assert aggregated([[1, 0], [2, 1]], rows).tolist() == [3.0, -1.0]
    assert aggregated([[1, 0], [2, 1]], rows, weights="uniform").tolist() == [2.0, 2.0]


def test_one_participant_is_the_average(federate):
    played = federate("fedavg", rounds=1, participation={"fraction": 0.2})
    alone = federate("local", rounds=1, participation={"fraction": 0.2})
    moved = (alone.clients["model"] != alone.prepared.setup.initial()).any(dim=1)
    assert moved.sum() == 1
    assert torch.equal(played.server["model"], alone.clients["model"][moved][0])


def test_one_full_batch_is_a_centralised_step(federate):
    training = {"batch_size": 100, "lr": 0.2}
    played = federate("fedavg", model={"hidden": []}, training=training, rounds=2)
    samples = played.prepared.resources.samples
    x, y = samples.take(np.concatenate([samples.train[client] for client in range(5)]))
    expected = take_softmax_steps(played.prepared.setup, x, y, 0.2, 2)
    found = played.server["model"].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
