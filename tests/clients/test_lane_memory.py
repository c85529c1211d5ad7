"""Numbers of lanes that fit a memory."""

import pytest
import torch

from hpcfl.clients import scoring
from hpcfl.clients.lane_memory import (
    count_client_bytes,
    count_lane_bytes,
    count_lanes,
    fit_clients,
)
from hpcfl.experiment.config import Training
from hpcfl.models.mlp import MLP
from hpcfl.rows import constants

PARAMETERS = 8 * 6 + 6 + 6 * 3 + 3
X = torch.zeros(1, 8)
WHOLE = Training(batch_size=500)


def make_model():
    return MLP((8,), 3, hidden=(6,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "rows"),
    [
        (WHOLE, 18),
        (Training(batch_size=500, momentum=0.9), 20),
        (Training(batch_size=500, optimizer="adam"), 22),
    ],
)
def test_a_lane_by_hand(training, rows):
    """The backward pass of 8-6-3 needs x [500, 8], relu(h) [500, 6], log-softmax [500,
    3], the labels and their total weight.
    """
    model = make_model()
    saved = 4 * 500 * (8 + 6 + 3) + 8 * 500 + 4
    assert count_lane_bytes(model, X, training) == rows * 4 * PARAMETERS + 2 * saved
    assert (
        count_lane_bytes(model, X, training, private=7)
        == rows * 4 * PARAMETERS + 2 * saved + 7
    )


def test_scoring_may_need_more_than_training():
    model = make_model()
    kept = 4 * (8 + 6 + 3) + 8 + 4  # by the graphs of a step on one sample
    assert count_lane_bytes(model, X, Training(batch_size=1)) == (
        8 * 4 * PARAMETERS + kept + 2 * scoring.BLOCK * 4 * 8
    )


def test_lanes_fill_the_memory_and_one_always_trains():
    model = make_model()
    one = count_lane_bytes(model, X, WHOLE)
    assert count_lanes(model, X, WHOLE, 10.5 * one / 0.7, 0, clients=0) == 10
    assert count_lanes(model, X, WHOLE, 10.5 * one / 0.7, one, clients=0) == 5
    assert count_lanes(model, X, WHOLE, 0.1 * one, 0, clients=0) == 1
    assert model.training


def test_the_frozen_base_counts_once_in_memory():
    model = make_model()
    model.hidden1.requires_grad_(False)
    model, training = constants.hold(model, constants.copy_frozen(model)), Training()
    one, base = count_lane_bytes(model, X, training), 4 * (8 * 6 + 6)
    for room, lanes in ((0, 10), (-0.6 * one, 9)):
        memory = (10.5 * one + base + room) / 0.7
        assert count_lanes(model, X, training, memory, 0, clients=0) == lanes


def test_rows_of_waiting_clients_count_in_memory():
    """Each client has two rows, and its private state twice; with a thousand clients
    one lane may be the only one that fits.
    """
    model = make_model()
    one = count_lane_bytes(model, X, WHOLE, private=100)
    each = count_client_bytes(model, private=100)
    assert each == 2 * 4 * PARAMETERS + 2 * 100
    assert (
        count_lanes(model, X, WHOLE, (10.5 * one + 40 * each) / 0.7, 100, clients=40)
        == 10
    )
    assert (
        count_lanes(model, X, WHOLE, (10.5 * one + 40 * each) / 0.7, 100, clients=1000)
        == 1
    )


def test_rows_take_half_of_the_room_of_lanes_and_rows():
    model = make_model()
    each = count_client_bytes(model, private=100)
    memory = 2 * 10.5 * each / 0.7
    for clients, together in ((9, 9), (10, 10), (1000, 10)):
        assert fit_clients(model, memory, 100, clients) == together
    assert fit_clients(model, 0, 100, 1000) == 1
