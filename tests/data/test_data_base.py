"""Contracts of partition schemes and of sources."""

import numpy as np
import pytest
from refusals import expect_refusal
from test_partition import TOY, dataset, lists

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.base import (
    Assignment,
    Draw,
    MergedScheme,
    Scheme,
    round_down,
)
from hpcfl.data.partitions.by_client import ByClient
from hpcfl.data.partitions.dirichlet import DirichletMin
from hpcfl.data.partitions.fixed import PathologicalPairs
from hpcfl.data.partitions.iid import Iid
from hpcfl.data.sources.base import Source
from hpcfl.experiment import config


def test_largest_remainders_by_hand():
    """10 in the proportion 1 : 2 : 4 is exactly 1.43, 2.86 and 5.71: two are rounded
    up.
    """
    assert round_down(np.array([1.0, 2.0, 4.0]) / 7 * 10, 10).tolist() == [1, 3, 6]
    assert round_down(np.ones(4) / 4 * 10, 10).tolist() == [3, 3, 2, 2]


def test_a_shared_sample_is_refused():
    class Greedy(MergedScheme):
        scheme: str = "greedy"

        def assign(self, labels, classes, generator):
            return Assignment([np.arange(10), np.arange(9, 20)])

    with expect_refusal(r"partition\.scheme = 'greedy'"):
        partition.make(Greedy(clients=2), TOY)


def test_an_assignment_of_another_type_is_refused():
    class Bare(MergedScheme):
        scheme: str = "bare"

        def assign(self, labels, classes, generator):
            return [np.arange(10), np.arange(10, 20)]

    with expect_refusal(r"partition\.scheme = 'bare': .*Assignment, not a list"):
        partition.make(Bare(clients=2), TOY)


def test_a_scheme_may_keep_the_official_splits_apart():
    class Official(Scheme):
        scheme: str = "official"

        def draw(self, labels, classes, official_test):
            end = len(labels) - official_test
            return Draw(
                np.array_split(np.arange(end), self.clients),
                [np.arange(end, len(labels))] * self.clients,
            )

    split = partition.make(
        Official(clients=2), dataset(np.arange(12) % 3, official_test=4)
    )
    assert lists(split) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [8, 9, 10, 11]]


PAIRS = {"train_samples": 9, "test_samples": 2}


@pytest.mark.parametrize(
    ("scheme", "keys", "official_test", "expected"),
    [
        (PathologicalPairs, PAIRS, 30, 1),
        (PathologicalPairs, PAIRS, 0, 0),
        (DirichletMin, {"beta": 9.0}, 30, 1),
        (ByClient, {}, 30, 1),
        (ByClient, {}, 0, 0),
        (Iid, {}, 30, 0),
    ],
)
def test_an_unread_share_of_training_samples_is_noted(
    scheme, keys, official_test, expected
):
    owners = datasets.number_owners(np.arange(120) % 2)
    data = dataset(np.arange(120) % 3, official_test=official_test, owners=owners)
    assert not partition.make(scheme(clients=2, **keys), data).notes
    notes = partition.make(scheme(clients=2, train=0.5, **keys), data).notes
    assert ["partition.train = 0.5: " in note for note in notes] == [True] * expected


class Misread(Source):
    """A scheme with other names of its parameters."""

    def read(self, called, place):
        raise AssertionError


misread = Misread()


def test_a_source_with_wrong_arguments_is_refused():
    table = {"method": {"name": "fedavg"}, "data": {"dataset": f"{__name__}:misread"}}
    words = r"data\.dataset = .*\(name, root, \*, .*\(called, place\)"
    with expect_refusal(words):
        config.parse(table)
