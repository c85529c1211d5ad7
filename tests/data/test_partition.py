from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.base import Draw, Scheme
from hpcfl.data.partitions.dirichlet import Dirichlet
from hpcfl.data.partitions.iid import Iid
from hpcfl.data.partitions.pathological import Pathological
from hpcfl.experiment import config


def dataset(labels, **options):
    labels = torch.as_tensor(labels)
    return datasets.Dataset(
        "toy", torch.zeros(len(labels), 1), labels, int(labels.max()) + 1, **options
    )


TOY = dataset(np.arange(120) % 3)


def deal(data=TOY, **keys):
    """Return a partition into three clients with samples of all classes."""
    return partition.make(Iid(**{"clients": 3, **keys}), data)


def lists(split):
    return [held.tolist() for held in (*split.train, *split.test)]


@pytest.mark.parametrize(
    "scheme",
    [Pathological(), Dirichlet(beta=0.5), Iid()],
    ids=lambda scheme: scheme.scheme,
)
def test_twenty_clients_share_the_digits(scheme):
    digits = datasets.load(config.Data())
    split = partition.make(scheme, digits)
    everything = np.concatenate([*split.train, *split.test])
    assert sorted(everything) == list(range(1797))
    labels = digits.y.numpy()
    for train, test in zip(split.train, split.test, strict=True):
        assert len(test) >= 1 and len(train) == 3 * (len(train) + len(test)) // 4
        for held in (train, test):
            assert held.dtype == np.int64 and (np.diff(held) > 0).all()
    counts = split.count_classes(labels, 10) + split.count_classes(labels, 10, "test")
    assert counts.dtype == np.int64
    assert counts.sum(0).tolist() == np.bincount(labels).tolist()


@pytest.mark.parametrize(("clients", "train"), [(120, 0.75), (60, 0.25)])
def test_a_client_without_samples_on_one_side_is_refused(clients, train):
    with expect_refusal(rf"client 0 gets 0 .*{clients} clients .*120 "):
        deal(clients=clients, train=train)


def test_a_saved_partition_is_loaded_unchanged(tmp_path):
    path, keys = tmp_path / "p.h5", {"clients": 2, "classes_per_client": 1}
    split = partition.make(Pathological(**keys), TOY)
    assert split.notes
    split.save(path)
    split.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["p.h5"]
    again = partition.make(Pathological(**keys, file=str(path)), TOY)
    assert lists(again) == lists(split)
    without = {"train": [], "test": []}
    assert vars(again) | without == vars(split) | without


def test_a_file_of_another_scheme_counts_and_is_noted(tmp_path):
    path = tmp_path / "p.h5"
    deal(seed=7).save(path)
    [note] = partition.make(Dirichlet(clients=3, file=str(path)), TOY).notes
    assert "scheme = 'iid', seed = 7" in note


def test_a_file_of_another_data_set_with_the_same_labels_is_noted(tmp_path):
    path = tmp_path / "partition.h5"
    deal(replace(TOY, name="other")).save(path)
    [note] = deal(file=str(path)).notes
    assert "'other'" in note and f"'{TOY.name}'" in note


def test_files_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "p.h5"
    deal().save(path)
    with expect_refusal(rf"partition\.file = '{path}' .*'toy' .*labels"):
        deal(dataset((np.arange(120) + 1) % 3), file=str(path))
    with expect_refusal(r"3 clients, partition\.clients = 4"):
        deal(clients=4, file=str(path))
    with expect_refusal(r"q\.h5: "):
        partition.Split.load(tmp_path / "q.h5")


def test_partitions_are_equal_if_samples_and_labels_are():
    one = deal()
    assert one.equals(replace(one, attempts=9, notes=["x"], scheme={}, dataset="other"))
    for other in (
        deal(clients=4),
        deal(seed=2),
        replace(one, labels_sha256="1" * 64),
        replace(one, test=one.test[::-1]),
        replace(one, train=[*one.train, one.test[0]], test=one.test[1:]),
    ):
        assert not one.equals(other)


def own(drawn):
    """A user's scheme for two clients that returns any object."""

    class Own(Scheme):
        def draw(self, labels, classes, official_test):
            return drawn

    return Own(scheme="own", clients=2)


FIRST, SECOND, THIRD = np.arange(3), np.arange(3, 6), np.arange(6, 9)
TESTS = [THIRD, THIRD]


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        (None, "return a Draw .*2 clients"),
        (Draw([FIRST], [SECOND]), "return a Draw .*2 clients"),
        (Draw([FIRST, SECOND], TESTS, names=["ann"]), "return a Draw .*2 clients"),
        (Draw([FIRST, SECOND.tolist()], TESTS), "client 1: .*array"),
        (Draw([FIRST, SECOND[:, None]], TESTS), "client 1: .*array"),
    ],
)
def test_the_draw_of_a_users_scheme_is_checked(drawn, words):
    with expect_refusal(words):
        partition.make(own(drawn), TOY)


@pytest.mark.parametrize(("tests", "notes"), [(TESTS, 0), ([SECOND, THIRD], 1)])
def test_a_test_sample_on_which_another_client_trains_is_noted(tests, notes):
    drawn = Draw([FIRST, SECOND], tests)
    assert len(partition.make(own(drawn), TOY).notes) == notes
