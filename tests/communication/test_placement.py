"""Which client lives on which rank."""

import numpy as np
import pytest
import torch

from hpcfl.communication.placement import place
from hpcfl.preparation.prepare import _device


def test_alone_everything_is_on_rank_0():
    assert place([3, 1, 2], 1).owner.tolist() == [0, 0, 0]


def test_largest_first_to_the_least_loaded_worker():
    # 9 → rank 1; 7 → rank 2; 6 → rank 2 has 7, rank 1 has 9: rank 2 (13); 5 → rank 1 (14); 4 → rank 2 (17);
    # 1 → rank 1 (15)
    assert place([5, 9, 4, 7, 1, 6], 3).owner.tolist() == [1, 1, 2, 2, 1, 2]


def test_ties_go_to_the_lower_client_and_rank():
    assert place([1, 1, 1, 1], 3).owner.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("size", [2, 3, 8, 30])
def test_every_client_has_one_worker_and_loads_are_within_four_thirds_of_the_best(size):
    cost = np.random.default_rng(0).integers(1, 100, 25)
    placed = place(cost.tolist(), size)
    assert sorted(np.concatenate([placed.clients_of(rank) for rank in range(size)])) == list(range(25))
    assert len(placed.clients_of(0)) == 0
    loads = [cost[placed.clients_of(rank)].sum() for rank in range(1, size)]
    assert max(loads) <= 4 / 3 * max(cost.sum() / (size - 1), cost.max())


def test_ranks_of_a_node_take_its_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [str(_device("auto", local_rank)) for local_rank in range(5)] == [
        "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0"]
