"""Sections on updates that exclude one another, and cohorts that are too small."""

import pytest
from playing import prepare_tiny
from whole_runs import UNIFORM, refuse

HALVE = {"kind": "own_updates:Halve"}
LARGEST = {"rule": "own_updates:Largest"}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"attack": {"kind": "own_updates:Negate", "clients": [5]}},
            r"attack\.clients = \[5\]: .* 0 to 4",
        ),
        (
            {"attack": {"kind": "own_updates:Negate", "share": 0.09}},
            "attack.share = 0.09: .* 0.1, ",
        ),
        (
            {
                "aggregation": {**LARGEST, "least": 6},
                "participation": {"scheme": "poisson"},
            },
            "Largest': .* 6 clients",
        ),
        (
            {
                "aggregation": {**LARGEST, "least": 4},
                "participation": {"fraction": 0.6},
            },
            "Largest': .* 4 clients",
        ),
        (
            {
                "aggregation": {**LARGEST, "least": 4},
                "participation": {"fraction": 0.6},
                "time": {"mode": "synchronous"},
            },
            "Largest': .* 4 clients",
        ),
        (
            {"aggregation": LARGEST, "method": {"name": "fedavg"}},
            "Largest' .*method.weights = 'uniform'",
        ),
        (
            {
                "compression": {"kind": "sign", "feedback": "ef21"},
                "aggregation": {"rule": "median"},
            },
            "median': .*feedback = 'ef21'",
        ),
        (
            {
                "compression": {"kind": "sign", "feedback": "ef21"},
                "aggregation": {"rule": "mean", "secure": True, "clip": 1.0},
            },
            "mean': .*feedback = 'ef21'",
        ),
        (
            {
                "compression": {"kind": "sign", "feedback": "ef21"},
                "privacy": {"unit": "client", "clip": 1.0, "noise": 1.0},
            },
            "mean': .*feedback = 'ef21'",
        ),
        ({"compression": HALVE, "time": {"mode": "asynchronous"}}, "'synchronous'"),
        (
            {"compression": HALVE, "method": {"name": "pfedsim"}},
            "method.name = 'pfedsim': ",
        ),
        (
            {
                "attack": {"kind": "alie", "share": 0.4},
                "participation": {"fraction": 0.4},
            },
            "'alie': .* 2 honest clients .* 1",
        ),
        (
            {
                "compression": HALVE,
                "attack": {"kind": "own_updates:Imitate", "share": 0.2},
            },
            "Imitate' .*Halve' .*feedback = false",
        ),
    ],
)
def test_an_invalid_section_is_refused(sections, words):
    refuse(words, **sections)


@pytest.mark.parametrize(
    "participation", [{"scheme": "poisson", "fraction": 0.6}, {"dropout": 0.2}]
)
def test_cohorts_that_vary_may_be_large_enough_in_some_rounds(participation):
    prepare_tiny(
        UNIFORM,
        aggregation={**LARGEST, "least": 5},
        participation=participation,
    )
