"""Which client lives on which rank."""

import numpy as np
import pytest

from hpcfl.communication.placement import place


def test_alone_everything_is_on_rank_0():
    assert place([3, 1, 2], 1).owner.tolist() == [0, 0, 0]


def test_largest_first_to_the_least_loaded_worker():
    # 9 → rank 1; 7 → rank 2; 6 → rank 2 has 7, rank 1 has 9: rank 2 (13); 5 → rank 1
    # (14); 4 → rank 2 (17); 1 → rank 1 (15)
    assert place([5, 9, 4, 7, 1, 6], 3).owner.tolist() == [1, 1, 2, 2, 1, 2]


def test_ties_go_to_the_lower_client_and_rank():
    assert place([1, 1, 1, 1], 3).owner.tolist() == [1, 2, 1, 2]


def test_of_equal_clients_those_of_one_kind_live_together():
    # Without kinds: 5 → rank 1, 5 → rank 2, then the 2s → 1, 2, 1, 2, and 1 → rank 1.
    costs, kinds = [2, 5, 2, 5, 2, 2, 1], ["b", "a", "a", "a", "b", "a", "a"]
    assert place(costs, 3).owner.tolist() == [1, 1, 2, 2, 1, 2, 1]
    # The 2s of kind a, clients 2 and 5, go to rank 1, those of kind b, clients 0 and 4,
    # to rank 2.
    assert place(costs, 3, kinds).owner.tolist() == [2, 1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize("kinds", [None, [*range(5)] * 5])
@pytest.mark.parametrize("size", [2, 3, 8, 30])
def test_every_client_has_one_worker_and_loads_are_within_four_thirds_of_the_best(
    size, kinds
):
    cost = np.random.default_rng(0).integers(1, 100, 25)
    placed = place(cost.tolist(), size, kinds)
    assert sorted(
        np.concatenate([placed.clients_of(rank) for rank in range(size)])
    ) == list(range(25))
    assert len(placed.clients_of(0)) == 0 and placed.idle == (
        [26, 27, 28, 29] if size == 30 else []
    )
    loads = [cost[placed.clients_of(rank)].sum() for rank in range(1, size)]
    assert max(loads) <= 4 / 3 * max(cost.sum() / (size - 1), cost.max())
