"""Steps as graphs: from the first rounds on, few launches each, and a wrong one is noticed."""

import pytest
import torch

from hpcfl.errors import RankFailure, RunFailure
from hpcfl.fleet import replay
from hpcfl.fleet.replay import Replayed
from hpcfl.methods.fedavg import FedAvg

# Of one step on plain SGD: copies of weights, of x and of y into the graph's places, the graph, the losses,
# the optimiser's kernel, and what an epoch does once for few steps.
LAUNCHES = 20


@pytest.mark.parametrize("model", ["mlp", "cnn", "tiny:normalised"])
def test_steps_are_graphs_from_the_fourth_on(on_gpu, samples, model):
    """Of four clients with as many samples; the tail of each epoch is a step of its own."""
    seen = on_gpu("fedavg", [[5, 5, 0, 0]] * 4, **samples(model), rounds=6, training={"batch_size": 4},
                  evaluation={"every": 6})
    assert seen.gpu.ledger.captures == 2
    last = seen.epochs[-1]
    assert last.turns == 3 and last.launches <= LAUNCHES * last.turns
    assert seen.epochs[0].launches > 3 * last.launches


def test_replays_are_compared_without_a_wait(gpu):
    replayed = Replayed(lambda x: (x * 2.0,))
    for step in range(10):
        assert replayed(torch.full((2, 3), float(step), device="cuda"))[0][0, 0].tolist() == 2 * step
    gpu.ledger.clear()
    for _ in range(10):
        replayed(torch.ones(2, 3, device="cuda"))
    assert not gpu.ledger.waits and replayed._apart
    replayed.check()
    assert not replayed._apart and gpu.ledger.waits.total() == 1


def test_what_a_function_changes_is_changed_by_its_graph(gpu):
    def function(x, total):
        total.add_(x)
        return (x * total,)

    replayed, total = Replayed(function, moved=[1]), torch.zeros(2, device="cuda")
    found = [replayed(torch.ones(2, device="cuda"), total)[0].tolist()[0] for _ in range(12)]
    replayed.check()
    assert found == list(range(1, 13)) and total.tolist() == [12, 12]


def test_a_number_that_changes_is_noticed(gpu):
    factor = [2.0]
    replayed = Replayed(lambda x: (x * factor[0],), "the loss 'mine'")
    for _ in range(replay.SOON + 5):
        replayed(torch.ones(2, device="cuda"))
    factor[0] = 2.01
    for _ in range(11):
        replayed(torch.ones(2, device="cuda"))
    with pytest.raises(RunFailure, match="the loss 'mine' reads a number that changed"):
        replayed.check()


class Fades(FedAvg):
    """FedAvg whose loss reads a number that changes each round from somewhere else than the lane."""

    def fit(self, fleet, rows, inbox, **how):
        ROUND[0] = fleet.round
        return super().fit(fleet, rows, inbox, **how)

    def loss(self, model, batch, lane):
        return super().loss(model, batch, lane) / ROUND[0]


ROUND = [1]


def test_the_round_in_which_it_is_noticed_fails(on_gpu, monkeypatch):
    monkeypatch.setattr(replay, "SOON", 1)
    with pytest.raises(RankFailure) as failure:
        on_gpu("test_on_graphs:Fades", [[4, 4, 0, 0]] * 2, rounds=8)
    assert isinstance(failure.value.__cause__, RunFailure)


def test_a_method_records_its_losses_once(on_gpu):
    """A loss made anew in each round would be captured anew."""
    seen = on_gpu({"name": "fedrod", "order": "separate"}, [[4, 4, 0, 0]] * 2, rounds=3)
    assert len(seen.played.prepared.resources.kernel._recordings) == 2
