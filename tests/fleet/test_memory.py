"""How many lanes fit a memory; ``tests/simulated/test_on_little_memory.py`` has the step
that finds out what a lane needs.
"""

import pytest
import torch

from hpcfl.experiment.config import Training
from hpcfl.fleet import memory
from hpcfl.fleet.memory import client_bytes, is_full, most_lanes
from hpcfl.models.mlp import MLP

MODEL = MLP((8,), 3, hidden=(6,))
PARAMETERS = 8 * 6 + 6 + 6 * 3 + 3
LANE = 10_000


@pytest.fixture(autouse=True)
def known_lane(monkeypatch):
    """A lane needs 10,000 bytes and its private state."""
    monkeypatch.setattr(
        memory, "lane_bytes", lambda module, sample, training, private: LANE + private
    )


def lanes(in_bytes, private=0, clients=0):
    x = torch.zeros(1, 8)
    return most_lanes(MODEL, x, Training(), in_bytes, private, clients)


def test_lanes_fill_the_memory_and_one_always_trains():
    assert lanes(10.5 * LANE / 0.7) == 10
    assert lanes(10.5 * LANE / 0.7, private=LANE) == 5
    assert lanes(0.1 * LANE) == 1


def test_rows_of_clients_whose_turn_is_later_take_room():
    """Two rows of each, and its private state twice; of a thousand nothing but one lane
    may be left.
    """
    each = client_bytes(MODEL, private=100)
    assert each == 2 * 4 * PARAMETERS + 2 * 100
    in_bytes = (10.5 * (LANE + 100) + 40 * each) / 0.7
    assert lanes(in_bytes, private=100, clients=40) == 10
    assert lanes(in_bytes, private=100, clients=1000) == 1


def test_one_lane_trains_where_the_step_that_is_tried_does_not_fit(monkeypatch):
    def full(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory, "lane_bytes", full)
    assert lanes(1e9) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("full"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_errors_of_a_full_gpu_are_known(error):
    assert is_full(error)
    assert not is_full(
        RuntimeError("CUDA error: an illegal memory access was encountered")
    )
