"""Simulated secure aggregation."""

import numpy as np
import pytest
import tiny
import torch
from playing import prepare_tiny
from whole_runs import PART, UNIFORM, is_the_same_elsewhere, play_alone, refuse

from hpcfl.updates.base import Context
from hpcfl.updates.secure import SecureSum, count_sufficient_bits

CONTEXT = Context(seed=3, round=1, ids=np.arange(4), clients=4)


def add(secure, updates):
    """Return the server's update, and the number of coordinates that wrapped around."""
    sent = secure.encode(updates, CONTEXT)
    server = {}
    result, _ = secure.receive(server, sent.mean(dim=0), len(updates))
    return result.tolist(), secure.measure(server)[0]


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(9, ([9 / 4, 13 / 4], 0)), (6, ([-28 / 16, -12 / 16], 2))],
)
def test_clipped_updates_add_up_in_whole_numbers_that_wrap_around(bits, expected):
    """(3, 4), (0, 1) and twice (6, 8), clipped to 5, have the sum (9, 13). In six bits
    these are 36 and 52 units of 0.25, centred modulo 64: 36 − 64 and 52 − 64.
    """
    secure = SecureSum(clip=5.0, step=0.25, bits=bits, clients=4)
    updates = torch.tensor([[3.0, 4], [0, 1], [6, 8], [6, 8]])
    assert add(secure, updates) == expected


def test_the_mean_of_many_rounds_is_the_mean_of_the_updates():
    secure = SecureSum(clip=10.0, step=0.5, bits=10, clients=4)
    updates = torch.tensor([[0.3, -0.7], [0.1, 0.0], [-1.2, 0.5], [0.2, 0.2]])
    rows = []
    for round in range(500):
        context = Context(seed=0, round=round, ids=np.arange(4), clients=4)
        rows.append(secure.encode(updates, context).mean(dim=0) * secure.step)
    drawn = torch.stack(rows)
    error = (drawn.mean(dim=0) - updates.mean(dim=0)).abs()
    assert (error <= 4 * drawn.std(dim=0) / 500**0.5).all()
    assert (drawn.std(dim=0) > 0).all()


def test_a_secure_run_is_near_the_plain_one(tmp_path):
    section = {"secure": True, "clip": 100.0, "step": 1e-6}
    table = tiny.table(UNIFORM, aggregation=section, participation=PART)
    same, secure = is_the_same_elsewhere(tmp_path, table)
    assert same
    plain = play_alone(tmp_path / "plain", participation=PART)
    torch.testing.assert_close(
        secure.server["model"], plain.server["model"], atol=1e-4, rtol=1e-3
    )
    width = len(plain.server["model"])
    bits = count_sufficient_bits(3, 100.0, 1e-6)
    sent = secure.values["clients/recorded/bits_up"][0]
    assert set(sent[~np.isnan(sent)]) == {bits * width}


def test_too_few_bits_are_noted_and_wrapped_coordinates_recorded(tmp_path):
    """Sums of up to 5·⌈1/0.01⌉ = 500 units need 10 bits."""
    section = {"secure": True, "clip": 1.0, "step": 0.01, "bits": 4}
    played = play_alone(tmp_path, aggregation=section, rounds=1)
    assert any("10 bits suffice" in note for note in played.prepared.notes)
    wrapped = played.values["aggregation/wrapped"][0]
    assert 0 < wrapped <= len(played.server["model"])
    enough = play_alone(tmp_path / "b", aggregation={**section, "bits": 10}, rounds=1)
    assert enough.values["aggregation/wrapped"][0] == 0
    assert not any("suffice" in note for note in enough.prepared.notes)


def test_noise_covers_the_norm_of_rounded_updates(tmp_path):
    played = play_alone(
        tmp_path,
        aggregation={"secure": True, "clip": 1.0, "step": 0.01},
        privacy={"unit": "client", "clip": 0.5, "noise": 2.0},
        rounds=1,
    )
    width = len(played.server["model"])
    noise = 2.0 * (0.5 + 0.01 * width**0.5)
    assert played.values["privacy/noise"][0] == pytest.approx(noise)
    assert played.values["privacy/clip"][0] == 0.5


def test_check_counts_bits():
    compression = {"kind": "sign", "downloads": "qsgd"}
    # 968 + 32 bits instead of 32 · 968
    text = describe(compression=compression)
    assert "1,000 bits" in text and "31 times" in text and "4 bits per number" in text
    # sums of 5000 units, with 14 bits for each number for any compression
    secure = {"secure": True, "clip": 1.0}
    text = describe(compression=compression, aggregation=secure)
    assert "14 bits suffice" in text and f"{14 * 968:,} bits" in text


def describe(**sections):
    """Return the lines of ``hpcfl check`` on updates of 968 numbers."""
    prepared = prepare_tiny(UNIFORM, **sections)
    lines = []
    for overlay in prepared.hooks.overlays:
        lines += overlay.describe(3, lambda round: np.arange(5), {"model": 968})
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"aggregation": {"secure": True}}, "aggregation: secure .*clip"),
        ({"aggregation": {"step": 0.1}}, "aggregation: step: .*secure = False"),
        (
            {"aggregation": {"secure": True, "clip": 1.0, "step": 1e-16}},
            "step = 1e-16: .* 57 bits, .* 48 ",
        ),
        (
            {
                "aggregation": {"secure": True, "clip": 1.0, "bits": 4},
                "privacy": {"unit": "client"},
            },
            "aggregation.bits = 4: .* 14 bits",
        ),
        (
            {"aggregation": {"secure": True, "rule": "own_updates:Largest"}},
            "rule = 'own_updates:Largest' .*rule = 'mean'",
        ),
        (
            {
                "aggregation": {"secure": True, "clip": 1.0},
                "method": {"name": "fedavg"},
            },
            "aggregation.secure = true: .*method.weights = 'uniform'",
        ),
        (
            {
                "aggregation": {"secure": True, "clip": 1.0},
                "attack": {"kind": "own_updates:Imitate", "share": 0.2},
            },
            "attack.kind = 'own_updates:Imitate' .*aggregation.secure",
        ),
    ],
)
def test_an_invalid_section_is_refused(sections, words):
    refuse(words, **sections)
