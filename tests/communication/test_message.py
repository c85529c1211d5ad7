"""Means in messages: valid Means, and their values on rank 0.

``tests/mpi/test_ranks.py`` has several ranks.
"""

import numpy as np
import pytest
import torch

from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.exchange import place
from hpcfl.communication.message import Field, Mean, Pool, select_sound, wrap_entries

ROWS, SAMPLES = torch.tensor([[1.0, 2], [3, 6], [5, 1]]), torch.tensor([1, 2, 1])


def test_a_mean_arrives_as_one_row(arrived):
    found = arrived({"mean": Mean(ROWS, SAMPLES), "rows": ROWS})
    assert found["mean"].tolist() == [3.0, 3.75] and torch.equal(found["rows"], ROWS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mean_has_the_type_of_its_rows(arrived, dtype):
    assert arrived({"mean": Mean(ROWS.to(dtype), SAMPLES)})["mean"].dtype == dtype


def test_several_means_arrive_as_several_rows(arrived):
    chosen = torch.tensor([[1, 0], [0, 2], [1, 0]])
    assert arrived({"mean": Mean(ROWS, chosen)})["mean"].tolist() == [
        [3.0, 1.5],
        [3.0, 6.0],
    ]
    own = torch.stack([ROWS, 2 * ROWS], dim=1)
    assert arrived({"mean": Mean(own, chosen)})["mean"].tolist() == [
        [3.0, 1.5],
        [6.0, 12.0],
    ]


def test_floats_of_a_mean_are_counted_or_declared():
    of = [
        Mean(ROWS, SAMPLES),
        Mean(torch.zeros(3, 4, 5), torch.ones(3, 4)),
        Mean(ROWS, SAMPLES, 7),
    ]
    assert [mean.count_floats() for mean in of] == [2, 20, 7]


@pytest.mark.parametrize(
    ("rows", "weights"),
    [
        ((3,), (3,)),
        ((3, 2), (2,)),
        ((3, 4, 2), (3,)),
        ((3, 4, 2), (3, 5)),
        ((3, 2), (3, 1, 1)),
    ],
)
def test_other_shapes_are_refused(rows, weights):
    with pytest.raises(ValueError, match=r"Mean of torch\.float32 \[3"):
        Mean(torch.zeros(rows), torch.ones(weights))


@pytest.mark.parametrize(
    "weights", [[0.5, 1, 1], [-1, 1, 1], [torch.nan, 1, 1], [torch.inf, 1, 1]]
)
def test_other_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights of a Mean"):
        Mean(ROWS, torch.tensor(weights))


def test_excluded_clients_do_not_count_in_means(arrived):
    sent = {"mean": Mean(ROWS, SAMPLES, torch.ones(3)), "rows": Field(ROWS)}
    left = select_sound(sent, torch.tensor([True, False, True]))
    found = arrived(left)
    assert found["mean"].tolist() == [3.0, 1.5]
    assert torch.equal(found["rows"], ROWS[[0, 2]])
    assert set(wrap_entries(left)) == {"mean", "rows"}


def test_a_pick_of_no_model_is_no_model():
    pool = Pool(ROWS, torch.tensor([[1, -1]]))
    assert torch.equal(pool.take(pool.picks[0, :1]), ROWS[1:2])
    with pytest.raises(IndexError):
        pool.take(pool.picks[0])


def test_a_mean_without_clients_is_nan():
    left = select_sound({"mean": Mean(ROWS, SAMPLES)}, torch.zeros(3, dtype=torch.bool))
    found = exchange.gather(
        OneProcess(),
        place([1.0], 1),
        np.zeros(0, int),
        left,
        [exchange.make_header(left)],
    )
    assert found["mean"].isnan().all()
