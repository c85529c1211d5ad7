"""Changed training samples of attackers, and test samples that measure their success."""

import numpy as np
import pytest
import torch
from playing import prepare_alone, read_part

from hpcfl.data import datasets
from hpcfl.experiment import config
from hpcfl.simulation.prepared_data import list_groups

DIGITS = datasets.load(config.Data())
SHIFTED = {"kind": "labels", "groups": 2, "share": 0.5}


def prepared(attack, **sections):
    table = {
        "rounds": 4,
        "partition": {"scheme": "iid", "clients": 6},
        "method": {"name": "fedavg"},
        "attack": {"clients": [1, 4], **attack},
        **sections,
    }
    return prepare_alone(table)


def read_labels(*part, **round):
    return read_part(*part, **round)[1]


def test_attackers_flip_their_training_labels_alone():
    of = prepared({"kind": "label-flip"})
    for client in range(6):
        numbers = torch.from_numpy(of.data.assigned.train[client])
        expected = DIGITS.y[numbers]
        if client in (1, 4):
            expected = 9 - expected
        assert torch.equal(read_labels(of, client), expected)
        tested = torch.from_numpy(of.data.split.test[client])
        assert torch.equal(read_labels(of, client, "test"), DIGITS.y[tested])
        counted = torch.bincount(expected, minlength=10).double()
        assert torch.equal(of.data.counts[client], counted)
    assert "patched" not in of.resources.samples.parts


def test_an_attack_may_begin_later():
    of = prepared({"kind": "label-flip", "since": 3})
    plain = read_labels(of, 1, round=1)
    assert torch.equal(read_labels(of, 1, round=2), plain)
    assert torch.equal(read_labels(of, 1, round=3), 9 - plain)
    flipped = of.data.counts[1].flip(0)
    assert torch.equal(of.data.count_in_round(3)[1], flipped)
    assert torch.equal(of.data.count_in_round(3)[0], of.data.counts[0])
    assert not any("attack" in note for note in of.notes)


def test_an_attack_after_the_last_round_is_noted():
    of = prepared({"kind": "label-flip", "since": 5}, rounds=4)
    assert any("attack.since = 5" in note for note in of.notes)


def test_a_backdoor_has_its_patch_and_target_in_a_share_of_the_samples():
    keys = {"kind": "backdoor", "target": 3, "patch": 2, "samples": 0.25}
    of = prepared(keys)
    for client in (0, 1):
        numbers = torch.from_numpy(of.data.assigned.train[client])
        images, plain = read_part(of, client)[0], DIGITS.x[numbers]
        patched = (images != plain).flatten(1).any(dim=1)
        changed = (read_labels(of, client) != DIGITS.y[numbers]) | patched
        count = int(0.25 * len(numbers) + 0.5) if client == 1 else 0
        assert changed.sum() == count
        assert (read_labels(of, client)[changed] == 3).all()
        assert (images[changed][..., -2:, -2:] == DIGITS.scale).all()
        assert torch.equal(images[..., :-2, :], plain[..., :-2, :])


def test_an_attack_is_scored_on_patched_test_samples_of_other_classes():
    of = prepared({"kind": "backdoor", "target": 3})
    for client in (0, 1):
        tested = torch.from_numpy(of.data.split.test[client])
        others = DIGITS.y[tested] != 3
        assert len(read_labels(of, client, "patched")) == others.sum()
        assert (read_labels(of, client, "patched") == 3).all()
        images = read_part(of, client, "patched")[0]
        assert (images[..., -2:, -2:] == DIGITS.scale).all()
        plain = DIGITS.x[tested][others]
        assert torch.equal(images[..., :-2, :], plain[..., :-2, :])


def test_an_attack_comes_after_the_shifts():
    shifted = prepared({"kind": "sign-flip"}, shift=[SHIFTED])
    of = prepared({"kind": "label-flip"}, shift=[SHIFTED])
    for client in range(6):
        expected = read_labels(shifted, client)
        if client in (1, 4):
            expected = 9 - expected
        assert torch.equal(read_labels(of, client), expected)
    assert np.array_equal(of.data.split.groups.group, shifted.data.split.groups.group)


@pytest.mark.parametrize(
    ("keys", "key"), [({"target": 10}, "target"), ({"patch": 9}, "patch")]
)
def test_a_backdoor_that_the_data_cannot_have_is_refused(keys, key):
    with pytest.raises(Exception, match=rf"attack.{key}"):
        prepared({"kind": "backdoor", **keys})


def test_groups_of_results_separate_attackers_from_others():
    of = prepared({"kind": "sign-flip"})
    group, names = list_groups(of.config, of.data)
    assert group.tolist() == [0, 1, 0, 0, 1, 0] and len(names) == 2
    shifted = prepared({"kind": "sign-flip"}, shift=[SHIFTED])
    group, names = list_groups(shifted.config, shifted.data)
    assert (group % 2).tolist() == shifted.data.split.groups.group.tolist()
    assert (group >= 2).tolist() == [False, True, False, False, True, False]
    assert len(names) == 4
