"""Learning rates of a round: decay, warm-up, cosine, step."""

import functools

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.clients.setup import Setup, compute_rate_factor
from hpcfl.experiment.sections import Training
from hpcfl.methods.base import Cohort
from hpcfl.rows.layout import Layout

COUNTS = torch.tensor([[1.0, 2], [3, 4], [0, 5]]).double()


@pytest.mark.parametrize(
    ("keys", "factors"),
    [
        ({}, [1, 1, 1, 1]),
        ({"lr_decay": 0.5}, [1, 0.5, 0.25, 0.125]),
        (
            {"schedule": "cosine"},
            [1, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2],
        ),  # cos 0, 45°, 90°, 135°
        ({"schedule": "step", "milestones": [1, 3]}, [1, 0.1, 0.1, 0.01]),
        ({"warmup": 3}, [1 / 3, 2 / 3, 1, 1]),
        (
            {
                "warmup": 2,
                "lr_decay": 0.5,
                "schedule": "cosine",
            },
            [0.5, 0.5 * (1 + 2**-0.5) / 2, 0.25 * 0.5, 0.125 * (1 - 2**-0.5) / 2],
        ),
    ],
)
def test_the_rate_of_each_round_follows_its_schedule(keys, factors):
    assert [
        compute_rate_factor(Training(**keys), round, 4) for round in (1, 2, 3, 4)
    ] == pytest.approx(factors)


@pytest.mark.slow
def test_both_rates_of_a_method_follow_it(federate):
    """A rate of 0.1 with a factor of a tenth from round 2 on is 0.01 there."""
    for name in ("fedavg", {"name": "ditto", "lam": 0.5}):
        steps = {"schedule": "step", "milestones": [1]}
        stepped = federate(name, rounds=2, training=steps)
        decayed = federate(name, rounds=2, training={"lr_decay": 0.1})
        plain = federate(name, rounds=2)
        assert stepped.digest == decayed.digest != plain.digest


def test_parameters_of_a_servers_module_are_keyed(make_fleet):
    setup = make_fleet().setup
    build = functools.partial(torch.nn.Linear, 2, 3)
    torch.manual_seed(1)
    first = setup.parameters(build, key=("hyper",))
    torch.manual_seed(2)
    again = setup.parameters(build, key=("hyper",))
    assert list(first) == ["weight", "bias"] and first["weight"].shape == (3, 2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(tensor.requires_grad for tensor in first.values())
    other = setup.parameters(build, key=("hyper", 2))
    assert not torch.equal(first["weight"], other["weight"])


def test_sample_level_privacy_hides_only_class_counts():
    build = torch.nn.Identity
    setup = Setup(Layout([]), COUNTS, 9, 0, build, Training(), hides_classes=True)
    cohort = Cohort(np.array([0, 2]), COUNTS[[0, 2]], setup, 1)
    assert setup.clients == 3 and setup.classes == 2
    assert setup.samples.tolist() == [3, 7, 5]
    assert cohort.samples.tolist() == [3, 5]
    assert cohort.weights.tolist() == [3 / 8, 5 / 8]
    for known in (setup, cohort):
        with expect_refusal(r"unit = 'sample' .*\('counts'\)"):
            known.counts  # noqa: B018


def test_changing_class_counts_in_place_affects_only_the_copy(make_fleet):
    fleet = make_fleet()
    everyones, own = fleet.setup.samples, fleet.samples
    for counts in (fleet.setup.counts, fleet.counts):
        counts /= counts.sum(dim=1, keepdim=True)
    assert torch.equal(fleet.setup.samples, everyones)
    assert torch.equal(fleet.samples, own)
