"""Simulated secure aggregation."""

import numpy as np
import pytest
import tiny
import torch
from test_overlay import UNIFORM, is_the_same_elsewhere, play_alone

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare
from hpcfl.updates.base import Context
from hpcfl.updates.secure import SecureSum, count_sufficient_bits

CONTEXT = Context(seed=3, round=1, ids=np.arange(4), clients=4)


def add(transform, updates):
    """Return the server's update, and how many coordinates wrapped around."""
    sent = transform.apply(updates, CONTEXT)
    result = transform.finish(sent.mean(dim=0), CONTEXT)
    return result, CONTEXT.numbers["wrapped"]


def test_updates_are_clipped_and_added_as_whole_numbers():
    """(3, 4), (0, 1) and twice (6, 8) clipped to 5 have the sum (9, 13)."""
    transform = SecureSum(kind="secure-sum", clip=5.0, step=0.25, bits=9)
    updates = torch.tensor([[3.0, 4], [0, 1], [6, 8], [6, 8]])
    result, wrapped = add(transform, updates)
    assert result.tolist() == [9 / 4, 13 / 4] and wrapped == 0


def test_sums_wrap_around_where_bits_are_too_few():
    """9 and 13 are 36 and 52 units of 0.25: modulo 64 centred 36 − 64 and 52 − 64."""
    transform = SecureSum(kind="secure-sum", clip=5.0, step=0.25, bits=6)
    updates = torch.tensor([[3.0, 4], [0, 1], [6, 8], [6, 8]])
    result, wrapped = add(transform, updates)
    assert result.tolist() == [-28 / 16, -12 / 16] and wrapped == 2


def test_the_mean_of_many_rounds_is_the_mean_of_the_updates():
    transform = SecureSum(kind="secure-sum", clip=10.0, step=0.5, bits=10)
    updates = torch.tensor([[0.3, -0.7], [0.1, 0.0], [-1.2, 0.5], [0.2, 0.2]])
    rows = []
    for round in range(500):
        context = Context(seed=0, round=round, ids=np.arange(4), clients=4)
        rows.append(transform.apply(updates, context).mean(dim=0) * transform.step)
    drawn = torch.stack(rows)
    error = (drawn.mean(dim=0) - updates.mean(dim=0)).abs()
    assert (error <= 4 * drawn.std(dim=0) / 500**0.5).all()
    assert (drawn.std(dim=0) > 0).all()


def test_18_bits_suffice_for_100_updates_of_norm_1_in_steps_of_a_thousandth():
    assert count_sufficient_bits(100, 1.0, 1e-3) == 18


def test_a_run_is_near_the_plain_one_and_the_same_elsewhere(tmp_path):
    section = {"secure": True, "clip": 100.0, "step": 1e-6}
    same, secure = is_the_same_elsewhere(
        tmp_path, aggregation=section, participation={"fraction": 0.6}
    )
    assert same
    plain = play_alone(tmp_path / "plain", participation={"fraction": 0.6})
    torch.testing.assert_close(
        secure.server["model"], plain.server["model"], atol=1e-4, rtol=1e-3
    )
    width = len(plain.server["model"])
    bits = count_sufficient_bits(3, 100.0, 1e-6)
    sent = secure.values["clients/recorded/bits_up"][0]
    assert set(sent[~np.isnan(sent)]) == {bits * width}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"aggregation": {"secure": True}}, "secure needs clip"),
        ({"aggregation": {"step": 0.1}}, "step needs secure = true"),
        (
            {"aggregation": {"secure": True, "clip": 1.0, "bits": 64}},
            "aggregation.bits",
        ),
        (
            {"aggregation": {"secure": True, "clip": 1.0, "step": 1e-16}},
            "at most 48 are exact",
        ),
        (
            {"aggregation": {"secure": True, "rule": "own_updates:Largest"}},
            "take rule = 'mean'",
        ),
        (
            {
                "aggregation": {"secure": True, "clip": 1.0},
                "method": {"name": "fedavg"},
            },
            "set method.weights = 'uniform'",
        ),
        (
            {
                "aggregation": {"secure": True, "clip": 1.0},
                "attack": {"kind": "own_updates:Imitate", "share": 0.2},
            },
            "take another attack",
        ),
    ],
)
def test_a_mistake_is_one_line(sections, words):
    method = sections.pop("method", UNIFORM)
    with pytest.raises(UserError, match=words) as error:
        prepare(config.parse(tiny.table(method, **sections)), OneProcess())
    assert "\n" not in str(error.value)
