"""Samples of clients in each round: heterogeneity.md H0, H7 and H8."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from playing import read_part
from refusals import expect_refusal

from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.data import datasets, partition
from hpcfl.data.shifts.base import Concept, Shift
from hpcfl.experiment import config
from hpcfl.report import configuration
from hpcfl.simulation.prepare import prepare
from hpcfl.storage.manifest import find_latest

DIGITS = datasets.load(config.Data())


def experiment(*shifts, clients=8, rounds=3, **sections):
    """Return an experiment on the digits with shifted clients."""
    table = {
        "rounds": rounds,
        "partition": {"scheme": "iid", "clients": clients},
        "method": {"name": "fedavg"},
        "shift": list(shifts),
        **sections,
    }
    return config.parse(table)


def prepared(*shifts, **keys):
    return prepare(experiment(*shifts, **keys), OneProcess())


def raw(of, client, part="train"):
    """Return the unshifted samples of a client's part."""
    numbers = torch.from_numpy(
        {"train": of.data.assigned.train, "test": of.data.split.test}[part][client]
    )
    return DIGITS.x[numbers], DIGITS.y[numbers]


ROTATED = {"kind": "rotation"}
SWAPPED = {"kind": "labels", "groups": 2}


def same_lists(one, other):
    return all(
        map(np.array_equal, [*one.train, *one.test], [*other.train, *other.test])
    )


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "pathological"])
def test_the_assignment_of_samples_does_not_depend_on_shifts(scheme):
    partitions = [
        prepared(*shifts, partition={"scheme": scheme, "clients": 4}).data.split
        for shifts in ([], [ROTATED, SWAPPED])
    ]
    assert same_lists(*partitions)


@pytest.mark.parametrize(
    ("scheme", "assign"), [("iid", "blocks"), ("pathological", "random")]
)
def test_groups_are_drawn_where_the_scheme_goes_by_numbers(scheme, assign):
    asked = experiment(ROTATED, partition={"scheme": scheme, "clients": 4})
    assert asked.shift[0].assign == assign
    assert asked.resolved()["shift"][0]["assign"] == assign


def test_train_and_test_are_shifted_alike_and_are_the_stored_samples_turned():
    of = prepared(ROTATED)
    for client, group in enumerate(of.data.split.groups.group.tolist()):
        for part in ("train", "test"):
            x, y = read_part(of, client, part)
            stored, labels = raw(of, client, part)
            assert torch.equal(x, torch.rot90(stored, group, dims=(2, 3)))
            assert torch.equal(y, labels)


def test_test_samples_can_stay_as_they_are():
    of = prepared({**ROTATED, "test": "clean"})
    assert torch.equal(read_part(of, 7, "test")[0], raw(of, 7, "test")[0])
    assert not torch.equal(read_part(of, 7)[0], raw(of, 7)[0])
    assert any("shift.0.test = 'clean'" in note for note in of.notes)


def test_validation_and_selection_samples_are_shifted_too():
    of = prepared(ROTATED, training={"validation": 0.2}, method={"name": "fedfomo"})
    numbers = of.resources.samples
    for part in ("validation", "selection"):
        x, _ = read_part(of, 7, part)
        held = [
            number
            for number in of.data.split.train[7]
            if any(
                torch.equal(torch.rot90(DIGITS.x[number], 3, dims=(1, 2)), one)
                for one in x
            )
        ]
        assert len(held) >= len(numbers.parts[part][7]) > 0


def shared(*shifts):
    """Return clients that are all tested on the same samples."""
    return prepared(
        *shifts,
        clients=6,
        data={"dataset": "tiny:blobs"},
        partition={"scheme": "tiny:Counts", "clients": 6, "counts": [[5, 5, 5, 5]] * 6},
    )


def test_shared_samples_have_a_copy_for_each_group_and_share_images():
    plain, three = shared(), shared({"kind": "labels", "groups": 3})
    samples = three.resources.samples
    assert len(samples.y) == 3 * len(plain.resources.samples.y)
    assert len(samples.x) == len(plain.resources.samples.x)
    assert samples.number_tests([0, 1, 2, 5]).tolist() == [0, 0, 1, 2]
    assert plain.resources.samples.number_tests([0, 5]).tolist() == [0, 0]


def test_one_model_is_scored_once_for_each_group(monkeypatch):
    of = shared({"kind": "labels", "groups": 3})
    fleet = of.make_fleet(np.arange(6), 1, is_scored=True)
    row = of.setup.initial()
    fleet.score("pre", row)
    at_once = fleet.results.scores["pre"]
    monkeypatch.setattr(of.resources.samples, "has_global_test", False)
    fleet.score("post", row)
    for name, sums in fleet.results.scores["post"].items():
        assert torch.equal(sums, at_once[name]) and len(sums) == 6


def test_counts_are_of_the_labels_that_clients_know():
    of, plain = prepared(SWAPPED), prepared()
    sigma = (np.arange(10) + 1) % 10
    for client, group in enumerate(of.data.split.groups.group.tolist()):
        new, old = of.data.counts[client].numpy(), plain.data.counts[client].numpy()
        assert np.array_equal(new[sigma] if group else new, old)
        _, labels = raw(of, client)
        expected = torch.from_numpy(sigma)[labels] if group else labels
        assert torch.equal(read_part(of, client)[1], expected)


@pytest.mark.slow
def test_a_run_with_identities_alone_equals_one_without(tmp_path):
    """All angles are 0, the share of clients is zero, or the drift is after the last
    round.
    """
    rotation = {"kind": "rotation", "angles": [0, 360]}
    share = {"kind": "rotation", "angles": [0, 90], "share": 0.01}
    digests = set()
    for number, shifts in enumerate([[], [rotation], [share], [{**SWAP, "at": [9]}]]):
        asked = experiment(*shifts, clients=4, rounds=2)
        run(asked, tmp_path / str(number), OneProcess())
        digests.add(find_latest(tmp_path / str(number) / "checkpoints").digest)
    assert len(digests) == 1


def test_each_group_may_have_the_whole_data_set_dealt_out():
    replicated = {**ROTATED, "replicate": True}
    of = prepared(replicated, newcomers={"clients": 4})
    group = of.data.split.groups.group
    for number in range(4):
        members = np.flatnonzero(group == number)
        held = [*np.array(of.data.split.train, object)[members]]
        held += [*np.array(of.data.split.test, object)[members]]
        assert sorted(np.concatenate(held)) == list(range(1797))
    first, second = of.data.split.train[0], of.data.split.train[2]
    assert not np.array_equal(first, second)
    assert any(" 4 groups " in note for note in of.notes)


def test_the_partition_file_stores_each_clients_group(tmp_path):
    of = prepared({**ROTATED, "replicate": True}, SWAPPED)
    of.data.split.save(tmp_path / "partition.h5")
    again = partition.Split.load(tmp_path / "partition.h5")
    assert again.equals(of.data.split)
    assert again.groups.names == of.data.split.groups.names
    assert again.groups.group.tolist() == of.data.split.groups.group.tolist()
    assert of.data.split.groups.names[0] == "0° · y"
    other = prepared(
        {**ROTATED, "replicate": True}, {**SWAPPED, "groups": 3}
    ).data.split
    assert not other.equals(again)


def test_a_partition_file_defines_samples_and_not_groups(tmp_path):
    replicated, path = {**ROTATED, "replicate": True}, str(tmp_path / "partition.h5")
    stored = {"scheme": "iid", "clients": 8, "file": path}
    whole = prepared(replicated).data.split
    whole.save(path)
    assert prepared(replicated, partition=stored).data.split.equals(whole)
    plain = prepared(partition=stored)
    assert same_lists(plain.data.split, whole) and plain.data.split.groups is None
    assert any(" 4 groups " in note for note in plain.notes)
    prepared().data.split.save(path)
    single = prepared(replicated, partition=stored)
    assert any("shift.replicate" in note for note in single.notes)


@pytest.mark.parametrize("shifts", [[], [SWAPPED]])
def test_a_stored_partition_of_groups_is_stored_again(tmp_path, shifts):
    """Its clients share samples, also in a run without these groups."""
    stored = {"scheme": "iid", "clients": 8, "file": str(tmp_path / "partition.h5")}
    prepared({**ROTATED, "replicate": True}).data.split.save(stored["file"])
    for _ in range(2):
        split = prepared(*shifts, partition=stored).data.split
        split.save(stored["file"])
        assert partition.Split.load(stored["file"]).equals(split)


def test_a_cluster_found_for_each_group_has_index_one(federate):
    """The clients differ only in their labels, and each group has a model from the
    start.
    """
    found = federate(
        {"name": "ifca", "clusters": 2},
        [[8, 8, 8, 8]] * 6,
        rounds=4,
        training={"lr": 0.5, "epochs": 4},
        shift=[{"kind": "labels"}],
    )
    assert found.values["recorded/adjusted_rand"][-1] == 1.0
    clusters = found.values["clients/recorded/cluster"][-1]
    assert len(set(clusters[:3])) == 1 == len(set(clusters[3:]))
    assert clusters[0] != clusters[-1]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("shift.0.kind='rotatoin'", "shift.0.kind = 'rotatoin' is unknown; did you mean"),
        ("shift.0.angels=[0]", "unknown key 'shift.0.angels'; did you mean 'angles'?"),
        ("shift.0.share=0.0", "shift.0.share = 0.0: must be greater than 0"),
        ("shift.0.who=0.5", "shift.0: who describes a drift, which needs at = [rounds]"),
        ("shift.0.at=[1]", "shift.0.at.0 = 1: must be greater than or equal to 2"),
        ("shift.0.at=[5, 5]", "shift.0: at must ascend in steps of at least gradual = 1"),
        ("shift.0.cells={plain=1.0}", "shift.0: cells must be shares of plain, first,"),
        ("shift=3", "shift = 3: must be"),
        ("shift=[3]", "shift.0 = 3: must be a table"),
        ("shift=[{}]", "'shift.0.kind' is missing; allowed: "),
        ("shift.1.kind=labels", "shift.1.kind: there is no table '1', only 1 from 0"),
    ],
)  # fmt: skip
def test_an_invalid_shift_is_refused_in_one_line(override, words, tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text('[method]\nname = "fedavg"\n[[shift]]\nkind = "rotation"\n')
    with expect_refusal() as error:
        config.load(file, [override])
    [line] = error.value.args
    assert words in line


CELLS = {"plain": 0.2, "first": 0.2, "second": 0.4, "both": 0.2}


def test_the_resolved_configuration_is_an_experiment_file(tmp_path):
    asked = experiment(ROTATED, {**SWAPPED, "cells": CELLS})
    (tmp_path / "again.toml").write_text(configuration.write_toml(asked))
    again = config.load(tmp_path / "again.toml")
    assert again.resolved() == asked.resolved()


SWAP = {
    "kind": "labels",
    "how": "swap",
    "swaps": [[1, 2]],
}
SWAPPED_1_2 = np.array([0, 2, 1, 3, 4, 5, 6, 7, 8, 9])


def labels_in(of, round, part="train"):
    return read_part(of, 0, part, round)[1].numpy()


def test_labels_are_swapped_from_a_round_on_and_back_from_another():
    of = prepared({**SWAP, "at": [3, 5]}, rounds=6)
    before = raw(of, 0)[1].numpy()
    for round, swapped in {
        1: False,
        2: False,
        3: True,
        4: True,
        5: False,
        9: False,
    }.items():
        assert np.array_equal(
            labels_in(of, round), SWAPPED_1_2[before] if swapped else before
        )
    assert len(of.resources.samples.x) == 1797  # images are shared by both labels
    counts = of.data.count_in_round(3)[0].numpy()
    assert np.array_equal(counts[SWAPPED_1_2], of.data.count_in_round(2)[0].numpy())


def test_samples_follow_gradually_and_the_set_only_grows():
    """Over four rounds from round 3 on: a quarter, half, three quarters and all
    samples.
    """
    of = prepared(
        {"kind": "rotation", "angles": [0, 180], "at": [3], "gradual": 4},
        rounds=8,
    )
    stored = raw(of, 1)[0]
    before = np.zeros(len(stored), bool)
    for round, share in {2: 0, 3: 1, 4: 2, 5: 3, 6: 4, 8: 4}.items():
        x, _ = read_part(of, 1, round=round)
        turned = torch.rot90(stored, 2, dims=(2, 3))
        follows = (x == turned).flatten(1).all(dim=1).numpy()
        assert follows.sum() == share * len(stored) // 4
        assert (follows | ~before).all()
        before = follows


def test_scores_can_be_of_the_next_round():
    of = prepared({**SWAP, "at": [3], "score": "next"})
    now, before = raw(of, 0)[1].numpy(), raw(of, 0, "test")[1].numpy()
    assert np.array_equal(labels_in(of, 2), now)
    assert np.array_equal(labels_in(of, 2, part="test"), SWAPPED_1_2[before])


def test_images_and_labels_commute_bit_for_bit():
    one, other = prepared(ROTATED, SWAPPED), prepared(SWAPPED, ROTATED)
    for client in range(8):
        for mine, theirs in zip(
            read_part(one, client), read_part(other, client), strict=True
        ):
            assert torch.equal(mine, theirs)
    assert len(one.data.split.groups.names) == 4


def test_cells_are_about_two_shifts():
    with expect_refusal(r"shift\.0\.cells: "):
        prepared({**ROTATED, "cells": CELLS})


def test_clients_without_a_change_are_one_group():
    turned = {**ROTATED, "angles": [90.0, 0.0], "share": 0.5}
    groups = prepared(turned).data.split.groups
    assert groups.names == ["0°", "90°"]
    assert groups.group.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


class Own(Shift):
    """A user's shift that returns one concept."""

    returned: ClassVar[Concept] = Concept("own")

    def concepts(self, facts):
        return [Concept("plain"), self.returned]


@pytest.mark.parametrize(
    ("concept", "words"),
    [
        (Concept("own", images=lambda x, _: x[:1]), r"'own' .*uint8 \[\d+, 1, 8, 8\]"),
        (Concept("own", images=lambda x, _: x / 2), r"'own' .*uint8"),
        (Concept("own", labels=np.arange(3)), r"shift\.0\.kind: .*'own' .*10 class"),
        (Concept("own", labels=np.arange(1, 11)), r"'own' .*10 class"),
        ("own", r"shift\.0\.kind: .*'concepts' .*list of Concepts"),
    ],
)
def test_the_concepts_of_a_users_shift_are_checked(monkeypatch, concept, words):
    """One sample in the place of all would be broadcast to them."""
    monkeypatch.setattr(Own, "returned", concept)
    with expect_refusal(words):
        prepared({"kind": f"{__name__}:Own"})
