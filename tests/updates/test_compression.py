"""Kinds of compression: their memory, counted bits and refusals."""

from fractions import Fraction

import numpy as np
import pytest
import tiny
import torch
from playing import prepare_tiny
from whole_runs import PART, UNIFORM, is_the_same_elsewhere, play_alone, refuse

from hpcfl.clock.workload import count_workload
from hpcfl.updates.base import Context
from hpcfl.updates.transforms.qsgd import Qsgd
from hpcfl.updates.transforms.random_k import RandomK
from hpcfl.updates.transforms.sign import Sign
from hpcfl.updates.transforms.top_k import TopK

MADE = torch.tensor([[4.0, -3, 2, 1, 0], [1, 1, -4, 1, 1], [0, 0, 0, 3, -1]])


def play(transform):
    """Return the uploads of one client in the rounds of MADE, and its memory."""
    memory = {name: torch.zeros(1, 5) for name in transform.list_memory()}
    sent, remembered = [], []
    for round, made in enumerate(MADE, start=1):
        context = Context(0, round, np.array([0]), clients=1, memory=memory)
        sent += transform.apply(made[None], context).tolist()
        remembered += [rows[0].tolist() for rows in memory.values()]
    return sent, remembered


def test_sent_plus_remembered_equals_made():
    sent, remembered = play(TopK(kind="top-k", k=2))
    assert sent == [[4, -3, 0, 0, 0], [0, 0, -2, 2, 0], [1, 0, 0, 3, 0]]
    assert remembered == [[0, 0, 2, 1, 0], [1, 1, 0, 0, 1], [0, 1, 0, 0, 0]]


def test_estimates_follow_the_updates():
    _, estimates = play(TopK(kind="top-k", k=2, feedback="ef21"))
    assert estimates == [[4, -3, 0, 0, 0], [4, 1, -4, 0, 0], [0, 1, 0, 0, 0]]


def test_the_server_adds_up_the_estimates_of_all_clients():
    """Two of three clients take part in the first round, the third in the second."""
    transform = TopK(kind="top-k", k=1, feedback="ef21")
    server = {name: torch.zeros(2) for name in transform.list_server_memory()}

    def finish(mean, weight):
        context = Context(0, 1, np.array([0]), 3, memory=server, weight=weight)
        return transform.finish(torch.tensor(mean), context).tolist()

    # sent (3, 0) and (0, 6), then (0, −3), each of weight 1/3
    assert finish([1.5, 3], 2 / 3) == [1, 2]
    assert finish([0.0, -3], 1 / 3) == [1, 1]


@pytest.mark.parametrize("transform", [TopK(kind="top-k", k=1), Sign(kind="sign")])
def test_a_nonfinite_row_stays_nonfinite(transform):
    updates = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [2.0, 1.0]])
    sent = transform.compress_finite(updates, Context(0, 1, np.arange(3), 3))
    assert sent.isfinite().all(dim=1).tolist() == [False, False, True]


def test_k_is_a_share_of_the_entries_rounded_up():
    assert TopK(kind="top-k", share=0.07).count_entries(100) == 7
    assert TopK(kind="top-k", share=0.071).count_entries(100) == 8
    assert TopK(kind="top-k", share=0.001).count_entries(100) == 1
    assert TopK(kind="top-k", k=200).count_entries(100) == 100


@pytest.mark.parametrize(
    ("transform", "bits"),
    [
        (TopK(kind="top-k", k=10), 10 * (32 + 10)),
        (TopK(kind="top-k", k=1000), 32 * 1000),
        (RandomK(kind="random-k", k=10), 32 * 10 + 64),
        (Qsgd(kind="qsgd", levels=7), 1000 * 4 + 32),
        (Qsgd(kind="qsgd", levels=8), 1000 * 5 + 32),
        (Sign(kind="sign"), 1000 + 32),
    ],
)
def test_bits_of_a_row_of_1000_numbers(transform, bits):
    counted = transform.count_bits(torch.zeros(2, 1000), torch.full((2,), 32e3))
    assert counted.tolist() == [bits, bits]


def test_scaled_random_k_has_no_feedback():
    with pytest.raises(ValueError, match=r"feedback .*scaled = false"):
        RandomK(kind="random-k", k=1, feedback=True)
    assert RandomK(kind="random-k", k=1, scaled=False).remembers is True
    assert RandomK(kind="random-k", k=1).remembers is False


def test_no_part_has_an_effect_on_whole_updates():
    assert not TopK(kind="top-k", share=1.0).has_effect(100)
    assert not RandomK(kind="random-k", k=100).has_effect(100)
    assert TopK(kind="top-k", k=100, feedback="ef21").has_effect(100)
    assert TopK(kind="top-k", k=99).has_effect(100)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        {
            "transform": [
                {"kind": "random-k", "share": 0.5, "scaled": False},
                {"kind": "qsgd"},
            ],
            "compression": {"kind": "top-k", "share": 0.3},
        },
        {"compression": {"kind": "sign"}, "aggregation": {"rule": "median"}},
        {"compression": {"kind": "sign", "feedback": "ef21"}},
    ],
)
def test_runs_are_the_same_on_any_number_of_ranks_and_resumed(tmp_path, sections):
    table = tiny.table(UNIFORM, participation=PART, **sections)
    same, played = is_the_same_elsewhere(tmp_path, table)
    assert same
    assert all(played.clients[name].any() for name in played.clients)


@pytest.mark.parametrize(
    "compression", [{"kind": "top-k", "share": 1.0}, {"kind": "random-k", "k": 10**6}]
)
def test_whole_updates_have_the_bits_of_a_plain_run(tmp_path, compression):
    plain = play_alone(tmp_path / "plain", "fedavg", rounds=2)
    whole = play_alone(tmp_path / "a", "fedavg", rounds=2, compression=compression)
    assert torch.equal(plain.server["model"], whole.server["model"])
    width = len(plain.server["model"])
    for way in ("up", "down"):
        bits = whole.values[f"clients/recorded/bits_{way}"]
        assert (bits[:2] == 32 * width).all()


def test_the_memory_of_absent_clients_is_unchanged(tmp_path):
    sections = {"participation": PART, "compression": {"kind": "top-k", "k": 5}}
    first = play_alone(tmp_path / "a", UNIFORM, rounds=1, **sections)
    second = play_alone(tmp_path / "b", UNIFORM, rounds=2, **sections)
    early, late = (played.clients["update.0.error"] for played in (first, second))
    began, next_cohort = (second.schedule.get_cohort(round) for round in (1, 2))
    absent = np.setdiff1d(began, next_cohort)
    assert len(absent) and torch.equal(early[absent], late[absent])
    assert early[absent].any(dim=1).all()
    took_part = np.intersect1d(began, next_cohort)
    assert (early[took_part] != late[took_part]).any()


def test_the_server_of_ef21_keeps_the_mean_of_all_estimates(tmp_path):
    compression = {"kind": "top-k", "k": 5, "feedback": "ef21"}
    keys = {"participation": PART, "compression": compression}
    for method in ("fedavg", UNIFORM):
        played = play_alone(tmp_path / str(len(method)), method, **keys)
        setup = played.prepared.setup
        shares = played.prepared.make_cohort(np.arange(setup.clients), 1).weights
        mean = shares @ played.clients["update.0.estimate"].double()
        found = played.server["update.0.mean_estimate"].double()
        torch.testing.assert_close(found, mean, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"kind": "top-k"}, "compression: .*share or k"),
        ({"kind": "top-k", "share": 0.1, "k": 2}, "compression: .*share or k"),
        ({"kind": "qsgd", "download_levels": 3}, "download_levels: .* = 'whole'"),
        ({"kind": "topk", "k": 2}, "kind = 'topk' .*'top-k'"),
    ],
)
def test_an_invalid_section_is_refused(section, words):
    refuse(words, compression=section)


def test_virtual_time_counts_the_bits():
    compression = {"kind": "top-k", "k": 5, "downloads": "qsgd"}
    prepared = prepare_tiny("fedavg", compression=compression)
    work = count_workload(prepared).work
    width = prepared.setup.layout.width
    assert work.floats_up == Fraction(5 * (32 + (width - 1).bit_length()), 32)
    # of a client that took part in the round before
    assert work.floats_down == Fraction(4 * width + 32, 32)
