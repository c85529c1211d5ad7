"""Long-tailed classes: heterogeneity.md H6."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data import long_tail, partition
from hpcfl.data.datasets import Dataset
from hpcfl.data.partitions.iid import Iid
from hpcfl.experiment import config

SIZES = {  # of CIFAR-10's 5,000 per class
    10: [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500],
    100: [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50],
}


def dataset(train, test):
    """Return a data set with ``train`` and ``test`` samples of each of ten classes."""
    y = np.concatenate([np.arange(10 * train) % 10, np.arange(10 * test) % 10])
    labels = torch.from_numpy(y)
    return Dataset("toy", torch.zeros(len(y), 1), labels, 10, official_test=10 * test)


def select(of, imbalance, merged=False, order="index"):
    data = config.Data(imbalance=float(imbalance), imbalance_order=order)
    return long_tail.select_samples(of, data, 1, merged)


@pytest.mark.parametrize("imbalance", SIZES)
def test_the_sizes_of_long_tailed_cifar_10(imbalance):
    cifar = dataset(5000, 1000)
    chosen, note = select(cifar, imbalance)
    train = chosen[chosen < 50_000]
    assert np.bincount(cifar.y[train]).tolist() == SIZES[imbalance]
    assert chosen[len(train) :].tolist() == list(range(50_000, 60_000))
    assert "official test split" in note


def test_a_larger_imbalance_keeps_a_subset_of_the_samples():
    cifar = dataset(500, 10)
    assert set(select(cifar, 100)[0]) < set(select(cifar, 10)[0])


def test_merged_splits_are_cut_together():
    chosen, note = select(dataset(60, 40), 100, merged=True)
    labels = dataset(60, 40).y[chosen]
    assert np.bincount(labels)[[0, 9]].tolist() == [100, 1]
    assert "class distribution" in note


def test_an_official_test_split_that_is_not_merged_is_unused():
    toy = replace(dataset(60, 40), merges=False)
    chosen, note = select(toy, 100, merged=True)
    assert toy.y[chosen].bincount()[0] == 60
    assert chosen.max() < 600
    assert f"{len(chosen)} of 1,000 samples" in note and "class distribution" in note


def test_the_order_of_class_sizes_can_be_random():
    toy = dataset(100, 10)
    sizes = np.bincount(toy.y[select(toy, 10, order="random")[0]])
    assert sizes.tolist() != sorted(sizes, reverse=True)
    assert sorted(sizes) == sorted(np.bincount(toy.y[select(toy, 10)[0]]))


def test_a_partition_contains_the_kept_samples_and_1_keeps_all():
    toy = dataset(100, 0)
    none, even, tail = (
        partition.make(Iid(clients=3), toy, data=data)
        for data in (None, config.Data(), config.Data(imbalance=10.0))
    )
    assert none.equals(even)
    dealt = np.concatenate([*tail.train, *tail.test])
    assert sorted(dealt) == select(toy, 10, merged=True)[0].tolist()


def test_a_partition_file_takes_precedence_with_a_note(tmp_path):
    path, toy = str(tmp_path / "partition.h5"), dataset(100, 0)
    whole = partition.make(Iid(clients=3), toy)
    whole.save(path)
    data = config.Data(imbalance=10.0)
    read = partition.make(Iid(clients=3, file=path), toy, data=data)
    assert read.equals(whole)
    [note] = read.notes
    assert "data.imbalance = 10: " in note and f"partition.file = '{path}'" in note


def test_imbalance_is_refused_for_natural_clients():
    table = {
        "data": {"imbalance": 10.0},
        "partition": {"scheme": "by-client"},
        "method": {"name": "fedavg"},
    }
    with expect_refusal(r"data.imbalance = 10"):
        config.parse(table)
