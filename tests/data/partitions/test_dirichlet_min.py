"""FedNH's partition: protocols.md D3."""

import numpy as np
import pytest

from hpcfl.data.partitions.dirichlet_min import plugin, swap
from hpcfl.errors import UserError

LABELS = np.concatenate([np.repeat(np.arange(10), 500), np.repeat(np.arange(10), 50)])


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_d3_the_training_split_is_dealt_out_and_all_are_tested_on_the_test_split(beta):
    draw = plugin(clients=20, beta=beta).draw(LABELS, 10, 500)
    assert sorted(np.concatenate(draw.train)) == list(range(5000))
    assert all(test.tolist() == list(range(5000, 5500)) for test in draw.test)
    assert (
        min(map(len, draw.train)) >= 10
        and min(len(np.unique(LABELS[held])) for held in draw.train) >= 2
    )
    assert 1 <= draw.attempts <= 3 and not draw.notes


def test_d3_clients_with_one_class_swap_with_the_last_ones():
    chunks, held = list(range(6)), np.array([2, 1, 3, 0, 2, 2])
    assert swap(2, chunks, held) == [0, 5, 2, 4, 3, 1]  # 1 with 5, 3 with 4
    assert swap(1, chunks, held) == chunks == list(range(6))


def test_d3_after_three_draws_the_last_one_counts_with_a_note():
    draw = plugin(clients=20, least_classes=10).draw(LABELS, 10, 500)
    assert (
        draw.attempts == 3 and len(draw.notes) == 1 and "after 3 draws" in draw.notes[0]
    )
    assert sorted(np.concatenate(draw.train)) == list(range(5000))


def test_d3_data_without_a_test_split_is_refused():
    with pytest.raises(
        UserError,
        match="'dirichlet-min' tests on the official test split; this data has none",
    ):
        plugin().draw(LABELS, 10, 0)
