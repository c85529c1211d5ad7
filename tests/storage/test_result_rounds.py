import json

import h5py
import numpy as np
import pytest

from hpcfl.storage.metrics import MetricsWriter
from hpcfl.storage.result_rounds import find_result_rounds

NAN = np.nan


@pytest.mark.parametrize(
    ("rounds", "numbers", "expected"),
    [
        ([1, 2, 3], [0.5, 0.7, 0.6], (1, 2, [2])),
        (
            [1, 2, 3],
            [0.7, 0.7, NAN],
            (0, 1, [1]),
        ),  # of equals the first; the last that has a number
        (
            range(1, 22),
            [*range(20), 0],
            (19, 20, [18, 19, 20]),
        ),  # a tenth of 21 is 2.1: rounds after 18
        (
            [10, 20, 30, 31],
            [0.1, 0.2, 0.3, NAN],
            (2, 2, [2]),
        ),  # scored every tenth round
    ],
)
def test_result_rounds_by_hand(rounds, numbers, expected):
    found = find_result_rounds(np.array(rounds), np.array(numbers, float), float)
    assert (found.best, found.last, found.tail) == expected


def test_the_best_is_the_lowest_where_less_is_better():
    assert (
        find_result_rounds(
            np.array([1, 2]), np.array([0.5, 0.7]), lambda number: -number
        ).best
        == 0
    )


def test_nothing_is_known_of_no_numbers():
    assert find_result_rounds(np.array([1, 2]), np.array([NAN, NAN]), float) is None


def test_the_metrics_say_what_came_out(tmp_path):
    """Rounds 1 to 10 and the models after them, of five clients before and two after
    local training.
    """
    header = {
        "config": {
            "name": "x",
            "seed": 0,
            "rounds": 10,
            "data": {"dataset": "digits"},
            "partition": {},
            "model": {"name": "mlp"},
            "method": {"name": "local"},
            "evaluation": {"score": "method", "metric": "weighted"},
        },
        "primary": "post",
    }
    writer = MetricsWriter(tmp_path, header, {})
    for round in range(1, 11):
        writer.record(
            round,
            {"post/weighted": 0.9 if round == 4 else round / 20, "post/clients": 2.0},
        )
    writer.conclude(
        11,
        {
            "pre/weighted": 0.8,
            "pre/clients": 5.0,
            "final": 1,
        },
    )
    with h5py.File(tmp_path / "metrics.h5") as file:
        assert json.loads(file.attrs["outcome"]) == {
            "name": "post/weighted",
            "best": {
                "rounds": [4, 4],
                "value": 0.9,
                "clients": 2,
            },
            "last": {
                "rounds": [10, 10],
                "value": 0.5,
                "clients": 2,
            },
            "tail": {
                "rounds": [10, 10],
                "value": 0.5,
                "clients": 2,
            },
        }
