"""Sections on updates that exclude each other, and cohorts that are too small."""

import pytest
import tiny
from whole_runs import UNIFORM, refuse

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare

HALVE = {"kind": "own_updates:Halve"}
LARGEST = {"rule": "own_updates:Largest"}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"attack": {"kind": "own_updates:Negate", "clients": [5]}},
            "clients from 0 to 4",
        ),
        (
            {"attack": {"kind": "own_updates:Negate", "share": 0.09}},
            "none of 5 clients",
        ),
        ({"aggregation": {**LARGEST, "least": 6}}, "needs 6 clients"),
        ({"aggregation": LARGEST, "method": {"name": "fedavg"}}, "set method.weights"),
        ({"compression": HALVE, "time": {"mode": "asynchronous"}}, "'synchronous'"),
        ({"compression": HALVE, "method": {"name": "pfedsim"}}, "after the warm-up"),
        (
            {
                "compression": HALVE,
                "attack": {"kind": "own_updates:Imitate", "share": 0.2},
            },
            "feedback = false",
        ),
    ],
)
def test_a_mistake_is_one_line(sections, words):
    refuse(words, **sections)


@pytest.mark.parametrize(
    "participation", [{"scheme": "poisson", "fraction": 0.6}, {"dropout": 0.2}]
)
def test_cohorts_that_vary_may_be_large_enough_in_some_rounds(participation):
    table = tiny.table(
        UNIFORM,
        aggregation={**LARGEST, "least": 5},
        participation=participation,
    )
    prepare(config.parse(table), OneProcess())
