"""Changes of clients' updates in whole runs."""

import numpy as np
import pytest
import tiny
import torch
from playing import play, prepare_tiny
from whole_runs import PART, UNIFORM, is_the_same_elsewhere, play_alone, refuse

from hpcfl.experiment import config

HALVE = {"kind": "own_updates:Halve"}
LARGEST = {"rule": "own_updates:Largest"}


@pytest.mark.parametrize(
    "sections",
    [
        {"aggregation": {"rule": "mean"}},
        {"transform": [{"kind": "own_updates:Identity"}]},
        {"compression": {"kind": "own_updates:Identity"}},
    ],
)
def test_sections_without_an_effect_keep_the_bits(tmp_path, sections):
    plain = play_alone(tmp_path / "plain", "fedavg")
    table = tiny.table("fedavg", **sections)
    same, played = is_the_same_elsewhere(tmp_path, table)
    assert same and played.digest == plain.digest


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedper", "mr-mtl", "scaffold"])
def test_all_parts_are_the_same_on_any_number_of_ranks_and_resumed(tmp_path, method):
    table = tiny.table(
        {"name": method, "weights": "uniform"},
        compression=HALVE,
        aggregation=LARGEST,
        attack={"kind": "own_updates:Negate", "clients": [1]},
        participation=PART,
    )
    same, played = is_the_same_elsewhere(tmp_path, table)
    assert same
    assert played.server["update.rule.last"].any()
    assert played.clients["update.0.rest"].any(dim=1).sum() >= 3


def test_an_attack_changes_rounds_only_after_its_start(tmp_path):
    attack = {"kind": "own_updates:Imitate", "clients": [0, 4], "since": 2}
    table = tiny.table(UNIFORM, attack=attack)
    same, played = is_the_same_elsewhere(tmp_path, table)
    assert same
    plain = play_alone(tmp_path / "plain")
    assert plain.digest != played.digest
    first = play_alone(tmp_path / "first", attack=attack, rounds=1)
    unchanged = play_alone(tmp_path / "one", rounds=1).server["model"]
    torch.testing.assert_close(first.server["model"], unchanged)


def test_the_rule_gets_the_updates_and_the_method_their_sum(tmp_path):
    """With one client the largest update is the client's."""
    counts = tiny.COUNTS[:1]
    one = play(tmp_path, UNIFORM, counts, aggregation=LARGEST, rounds=1)
    assert one.server["update.rule.last"].norm() > 0.01
    before = one.prepared.setup.initial()
    expected = before.double() + one.server["update.rule.last"].double()
    assert torch.equal(one.server["model"], expected.float())


def test_a_skipped_round_keeps_the_servers_state(tmp_path):
    sections = {"aggregation": {**LARGEST, "least": 4}}
    played = play_alone(tmp_path, participation={"dropout": 0.7}, **sections)
    assert played.values["aggregation/skipped"][:3].tolist() == [1, 2, 3]
    assert torch.equal(played.server["model"], played.prepared.setup.initial())


def test_bits_are_counted_and_memory_adds_up(tmp_path):
    played = play_alone(tmp_path, compression=HALVE, rounds=1)
    width = played.prepared.setup.layout.width
    assert (played.values["clients/floats_up"][0] == 5 * width / 32).all()
    half = played.clients["update.0.rest"].mean(dim=0)
    torch.testing.assert_close(played.server["update.0.total"], half)


@pytest.mark.parametrize(
    "sections",
    [
        {"compression": {"kind": "top-k", "k": 5}, "aggregation": {"rule": "median"}},
        {"aggregation": {"secure": True, "clip": 1.0}},
    ],
)
def test_check_describes_no_uploads_of_a_method_without_any(sections):
    method = {"name": "local", "weights": "uniform"}
    (overlay,) = prepare_tiny(method, **sections).hooks.overlays
    assert overlay.describe(3, lambda round: np.arange(5), {}) == []


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"aggregation": {"rule": "meen"}}, "rule = 'meen' .*'mean'"),
        (
            {"aggregation": {"rule": "own_updates:Halve"}},
            "rule = 'own_updates:Halve' .*base.Rule",
        ),
        ({"transform": [{"kind": "none-such"}]}, "transform.0.kind = 'none-such'"),
        ({"compression": {}}, "'compression.kind' .*top-k"),
        ({"compression": {**HALVE, "k": 1}}, "'compression.k'; .*kind"),
        ({"attack": {"kind": "own_updates:Negate"}}, "attack: .*share or clients"),
    ],
)
def test_an_invalid_section_is_refused(sections, words):
    refuse(words, **sections)


def test_sections_belong_to_the_identity_where_they_are_given():
    plain = tiny.parse("fedavg")
    assert not {"transform", "compression", "aggregation"} & plain.resolved().keys()
    given = tiny.parse("fedavg", compression=HALVE)
    assert given.resolved()["compression"] == HALVE
    assert given.fingerprint() != plain.fingerprint()
    assert config.parse(given.resolved()).fingerprint() == given.fingerprint()
