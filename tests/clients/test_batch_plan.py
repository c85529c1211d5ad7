"""Mini-batches of an epoch, by hand."""

import numpy as np
import pytest

from hpcfl.clients import batch_plan
from hpcfl.clients.batch_plan import (
    BatchRun,
    MiniBatches,
    TrainingClient,
    count_epoch_samples,
    find_fewest_samples,
    order_by_length,
    plan_epoch,
)
from hpcfl.experiment.sections import Training


def test_full_batches_come_in_lockstep_and_then_the_last_ones_by_size():
    """11, 9, 8, 5 and 2 samples in batches of 4, with two lanes for incomplete batches."""
    [block] = plan_epoch([11, 9, 8, 5, 2], [0, 1, 2, 3, 4], 4)
    assert block == [
        BatchRun([0, 1, 2, 3], [0, 0, 0, 0], 4, 1),
        BatchRun([0, 1, 2], [4, 4, 4], 4, 1),
        BatchRun([0], [8], 3, 1),
        BatchRun([4], [0], 2, 1),
        BatchRun([1, 3], [8, 4], 1, 1),
    ]


def test_finished_lanes_have_no_batches():
    assert plan_epoch([8, 8, 5], [1, 2], 4) == [
        [
            BatchRun([1, 2], [0, 0], 4, 1),
            BatchRun([1], [4], 4, 1),
            BatchRun([2], [4], 1, 1),
        ]
    ]
    assert plan_epoch([8, 8], [], 4) == []


def test_positions_are_those_of_the_samples_of_each_lane():
    [block] = plan_epoch([5, 3], [0, 1], 2)
    orders = [np.array([9, 8, 7, 6, 5]), np.array([3, 2, 1])]
    positions = [run.positions(orders).tolist() for run in block]
    assert positions == [[[9, 8], [3, 2]], [[7, 6]], [[5], [1]]]


@pytest.mark.parametrize("most", [1, 4, 7, 30, 2048])
def test_each_sample_is_used_once_for_any_block_size(monkeypatch, most):
    monkeypatch.setattr(batch_plan, "BLOCK_SAMPLES", most)
    lengths, size = [23, 20, 9, 8, 3], 4
    used = {lane: [] for lane in range(5)}
    for block in plan_epoch(lengths, range(5), size):
        assert len(block) == 1 or sum(run.samples for run in block) <= most
        for run in block:
            for lane, start in zip(run.lanes, run.starts, strict=True):
                used[lane] += range(start, start + run.batches * run.size)
    assert used == {lane: list(range(length)) for lane, length in enumerate(lengths)}


def test_lanes_are_sorted_by_full_batches_and_then_by_the_last_one():
    assert order_by_length([3, 8, 9, 5, 8, 0], 4) == [2, 1, 4, 3, 0, 5]


@pytest.mark.parametrize(
    ("samples", "fewest", "steps", "used"),
    [
        (10, 1, None, 10),
        (9, 2, None, 8),  # batch norm cannot process one sample
        (1, 2, None, 0),
        (8, 2, None, 8),
        (10, 1, 2, 8),
        (10, 1, 3, 10),
        (0, 1, None, 0),
    ],
)
def test_an_epoch_uses_whole_batches_and_a_last_one_that_is_large_enough(
    samples, fewest, steps, used
):
    assert count_epoch_samples(samples, 4, fewest, steps) == used


@pytest.mark.parametrize(
    ("drop_last", "batch_norm", "size", "fewest"),
    [
        (False, False, 4, 1),
        (False, True, 4, 2),
        (True, False, 4, 4),
        (True, True, 1, 2),
    ],
)
def test_the_last_batch_is_dropped_unless_it_is_full(
    drop_last, batch_norm, size, fewest
):
    training = Training(batch_size=size, drop_last=drop_last)
    assert find_fewest_samples(training, batch_norm) == fewest


def test_each_sample_is_used_once_and_epochs_differ(make_fleet):
    """There are two lanes, of which the second uses four of its six samples."""
    resources = make_fleet([[8, 0, 0, 0], [6, 0, 0, 0]]).resources
    clients = []
    for client, length in ((0, 8), (1, 4)):
        pool = resources.samples.train[client]
        clients.append(TrainingClient(client, 1, pool, length, 2))
    batches = MiniBatches(resources.kernel, resources.samples, 3, "train", 4, clients)
    orders, size = batches.draw(0)
    assert size == 4 and list(map(len, orders)) == [8, 4]
    for order, client in zip(orders, clients, strict=True):
        assert len(set(order)) == len(order) and set(order) <= set(client.pool)
    again, later = batches.draw(0)[0], batches.draw(1)[0]
    assert all(map(np.array_equal, orders, again))
    assert not np.array_equal(orders[0], later[0])
