"""Notes of methods about keys and models whose effect a user may not expect."""

import pytest
from playing import prepare_tiny

AVERAGED = {"model": {"name": "tiny:normalised"}, "training": {"buffers": "average"}}


def list_notes(method, sections):
    prepared = prepare_tiny(method, **sections)
    return prepared.method.notes(prepared.setup)


@pytest.mark.parametrize(
    ("method", "sections", "words"),
    [
        ("moon", {}, "μ = 5 "),
        ("fml", AVERAGED, "training.buffers"),
        ("pfedme", {"training": {"lr": 0.1, "warmup": 3}}, "lr · lam"),
        ("partialfed", {}, "method.warmup"),
        ("fednova", {}, "FedAvg with uniform weights"),
        ("fednova", {"training": {"optimizer": "adam"}}, "training.optimizer"),
    ],
)
def test_a_method_notes(method, sections, words):
    assert words in list_notes(method, sections)[-1]


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ({"name": "moon", "mu": 5.0}, {}),
        ("fml", {"model": {"name": "tiny:normalised"}}),
        ("pfedme", {"training": {"lr": 0.05}}),
        ({"name": "fednova", "weights": "uniform"}, {}),
    ],
)
def test_a_method_notes_nothing(method, sections):
    assert list_notes(method, sections) == []
