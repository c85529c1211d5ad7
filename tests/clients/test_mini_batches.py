"""The mini-batches of an epoch: ``test_training.py`` trains on them."""

import numpy as np
import pytest

from hpcfl.clients.batch_plan import BatchRun
from hpcfl.clients.mini_batches import LaneClient, MiniBatches


@pytest.fixture
def batches(make_fleet):
    """Two lanes, of which the second one uses four of its six samples."""
    resources = make_fleet([[8, 0, 0, 0], [6, 0, 0, 0]]).resources
    lanes = []
    for client, length in ((0, 8), (1, 4)):
        pool = resources.samples.train[client]
        lanes.append(LaneClient(client, 1, pool, length, 2))
    return MiniBatches(resources.kernel, resources.samples, 3, "train", 4, lanes)


def test_each_sample_is_used_once_and_epochs_differ(batches):
    orders, size = batches.draw(0)
    assert size == 4 and list(map(len, orders)) == [8, 4]
    for order, lane in zip(orders, batches.lanes, strict=True):
        assert len(set(order)) == len(order) and set(order) <= set(lane.pool)
    again, later = batches.draw(0)[0], batches.draw(1)[0]
    assert all(map(np.array_equal, orders, again))
    assert not np.array_equal(orders[0], later[0])


def test_a_lane_draws_the_same_beside_any_other(batches):
    orders, _ = batches.draw(0)
    batches.lanes, batches.keys = batches.lanes[1:], batches.keys[1:]
    assert np.array_equal(batches.draw(0)[0][0], orders[1])


def test_gradients_are_counted_by_lane(batches):
    orders, _ = batches.draw(0)
    batches.count(BatchRun([0, 1], [0, 0], 4, 1), orders, [1], 4)
    batches.count(BatchRun([0], [4], 4, 1), orders, [2], 8)
    assert batches.sample_gradients.tolist() == [12, 4]
    assert not batches.noisy_batches.any()
