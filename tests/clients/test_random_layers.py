"""Models with random layers: the same numbers for a client alone and among others, and
after a resume.
"""

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from hpcfl.clients.step_context import StepRandom
from hpcfl.models import RandomLayer

MODEL = {"name": "test_random_layers:Dropping"}
HOW = {"epochs": 3, "batch_size": 4, "lr": 0.1}
SHARE = 0.4  # of the numbers or samples that a layer drops


class Dropping(nn.Module):
    """A model with two dropout layers, one of which is called twice, and a user's
    random layer.
    """

    def __init__(self, shape, classes):
        super().__init__()
        self.hidden1 = nn.Linear(tiny.FEATURES, 8)
        self.hidden2 = nn.Linear(8, 8)
        self.head = nn.Linear(8, classes)
        self.first = nn.Dropout(SHARE)
        self.second = nn.AlphaDropout(SHARE)
        self.depth = Depth()

    def features(self, x):
        x = torch.relu(self.hidden1(self.first(x)))
        x = x + self.depth(torch.relu(self.hidden2(self.first(x))))
        return self.second(x)

    def forward(self, x):
        return self.head(self.features(x))


class Depth(RandomLayer):
    """Stochastic depth: each sample uses the branch or skips it."""

    def forward(self, x):
        if not self.training:
            return x
        return torch.where(self.uniform(len(x), 1) >= SHARE, x, 0)


def trained(make_fleet, rows_of, lanes, **how):
    fleet = make_fleet(lanes=lanes, model=MODEL, **HOW)
    return fleet.train(rows_of(fleet), **how)


def test_a_client_has_the_same_draws_alone_and_in_lanes(make_fleet, rows_of):
    alone, beside = (trained(make_fleet, rows_of, lanes) for lanes in (1, 3))
    torch.testing.assert_close(alone, beside, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_random_layers_are_bit_identical_for_any_lanes(make_fleet, rows_of):
    expected = trained(make_fleet, rows_of, "auto")
    for lanes in (2, 7):
        assert torch.equal(trained(make_fleet, rows_of, lanes), expected)
    for client in (0, 4):
        only = torch.arange(5) == client
        one = trained(make_fleet, rows_of, "auto", only=only)
        assert torch.equal(one[client], expected[client])


def test_draws_differ_between_phases_and_rounds(make_fleet, rows_of):
    """One mini-batch of all samples, in any order."""
    how = {**HOW, "model": MODEL, "batch_size": 100}
    fleets = [make_fleet(round=round, **how) for round in (1, 1, 2)]
    rows = rows_of(fleets[0])
    first, phase, round = (
        fleet.train(rows, phase=phase)
        for fleet, phase in zip(fleets, ("a", "b", "a"), strict=True)
    )
    for other in (phase, round):
        assert ((first - other).abs().amax(dim=1) > 1e-3).all()


def keys_of(clients, steps, phase="train", round=1, epoch=0, seed=3):
    """Return the keys of all lanes in an epoch, [L, steps, gradients, layers, 2]."""
    keys = [(round, client) for client in clients]
    random = StepRandom(seed, keys, steps, torch.device("cpu"), phase, layers=3)
    random.begin(epoch)
    drawn, lanes = [], slice(None)
    for _ in range(min(steps)):
        drawn.append(torch.stack([random.keys(lanes), random.keys(lanes)], dim=1))
        random.take(lanes)
    return torch.stack(drawn, dim=1)


def test_no_two_keys_are_equal():
    drawn = [
        keys_of([4, 7], [5, 5]),
        keys_of([4, 7], [5, 5], phase="tune"),
        keys_of([4, 7], [5, 5], round=2),
        keys_of([4, 7], [5, 5], epoch=1),
        keys_of([4, 7], [5, 5], seed=4),
    ]
    keys = torch.stack(drawn).view(-1, 2)
    assert len({tuple(key) for key in keys.tolist()}) == len(keys)
    assert len(set(keys[:, 1].tolist())) > len(keys) - 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["per-fedavg", "scaffold", "fedrep"])
def test_methods_with_own_steps_draw_alike_in_all_lanes(federate, method):
    """Per-FedAvg takes several gradients per step. FedRep trains heads on features
    unless the features are random.
    """
    ended = [
        federate(method, rounds=2, model=MODEL, runtime={"lanes": lanes})
        for lanes in (1, 2, 5)
    ]
    serial, two, all_at_once = ended
    assert two.digest == all_at_once.digest
    one, other = (run.values["clients/post/loss"] for run in (serial, two))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
