"""Sections in combination with ``[privacy]``."""

import pytest
import tiny
from whole_runs import refuse

from hpcfl.experiment import config

CLIENT = {"unit": "client"}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"privacy": {}}, "'privacy.unit'"),
        ({"privacy": {**CLIENT, "noise": 1.0}}, "privacy: noise .*clip"),
        (
            {"privacy": {**CLIENT, "clip_rate": 1.0}},
            "clip_rate: .*adaptive_clip = False",
        ),
        ({"privacy": {"epsilon": 1.0, "noise": 1.0}}, "noise and epsilon"),
        (
            {"privacy": {"clip": 1.0, "local": True, "epsilon": 1.0}},
            "local .*noise .*epsilon",
        ),
        (
            {"privacy": {"local": True, "adaptive_clip": True, "clip": 1.0}},
            "local and adaptive_clip",
        ),
        ({"method": {"name": "fedavg", "weights": "samples"}}, "weights = 'uniform'"),
        (
            {"participation": {"select": "power-of-choice"}},
            "'power-of-choice': .*'uniform'",
        ),
        (
            {"participation": {"scheme": "poisson", "select": "power-of-choice"}},
            "participation.scheme = 'poisson' .*'uniform'",
        ),
        (
            {"participation": {"scheme": "poisson"}, "time": {"mode": "synchronous"}},
            "scheme = 'poisson': .*time.mode = 'none'",
        ),
        ({"time": {"mode": "asynchronous"}}, "'asynchronous': .*'synchronous'"),
        (
            {"time": {"mode": "synchronous", "over_selection": 2.0}},
            "time.over_selection and time.availability",
        ),
        (
            {
                "privacy": {"accountant": "pld"},
                "participation": {"fraction": 0.4},
            },
            "accountant = 'pld' .*'rdp'.* participation.scheme",
        ),
        (
            {"privacy": {"accountant": "pld", "clip": 1.0, "noise": 1e-9}},
            "privacy.noise = 1e-09: .*'rdp'",
        ),
        (
            {"privacy": {"accountant": "pld", "clip": 1.0, "epsilon": 1e4}},
            "privacy.epsilon = 10000: .*'rdp'",
        ),
        (
            {"privacy": {"clip": 1.0, "noise": 0.5, "adaptive_clip": True}},
            r"below 2·clip_noise = 0.5",
        ),
        (
            {"aggregation": {"rule": "own_updates:Largest"}},
            "Largest': .*'mean'.* privacy.local = true",
        ),
    ],
)
def test_an_invalid_section_is_refused(sections, words):
    privacy = sections.pop("privacy", None)
    privacy = {**CLIENT, **privacy} if privacy else privacy
    privacy = CLIENT if privacy is None else privacy
    refuse(words, **{"method": "fedavg", **sections, "privacy": privacy})


def test_the_section_sets_equal_weights():
    given = tiny.parse("fedavg", privacy=CLIENT)
    assert given.method.weights == "uniform"
    assert config.parse(given.resolved()).fingerprint() == given.fingerprint()
