"""Natural clients: named by the data, or listed in a user's file."""

import json

import h5py
import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data import partition
from hpcfl.data.datasets import Dataset, number_owners
from hpcfl.data.partitions.by_client import plugin

NAMES = np.array(
    ["eve", "ann", "bob", "ann", "eve", "eve", "bob", "ann", "eve", "bob", "bob", "eve"]
)
LISTS = {"one": [5, 0, 1, 2], "two": [3, 4, 6, 7]}
APART = {"one": {"train": [0, 1], "test": [2]}, "two": {"train": [4, 3], "test": [2]}}


def data(official_test=0, named=True):
    return Dataset(
        "toy",
        torch.zeros(12, 1),
        torch.arange(12) % 3,
        3,
        official_test=official_test,
        owners=number_owners(NAMES) if named else None,
    )


def lists(split):
    return [held.tolist() for held in (*split.train, *split.test)]


def write(path, content):
    if path.suffix == ".json":
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    else:
        with h5py.File(path, "w") as file:
            for name, held in content.items():
                apart = isinstance(held, dict)
                parts = (
                    {f"{name}/{part}": held[part] for part in held}
                    if apart
                    else {name: held}
                )
                for place, samples in parts.items():
                    file.create_dataset(place, data=samples)
    return str(path)


def test_each_client_has_its_own_samples_cut_as_in_other_schemes():
    split = partition.make(plugin(clients=3, train=0.5), data())
    for client, name in enumerate(["ann", "bob", "eve"]):
        train, test = split.train[client], split.test[client]
        assert sorted([*train, *test]) == np.flatnonzero(name == NAMES).tolist()
        assert len(train) == (name == NAMES).sum() // 2 and (np.diff(train) > 0).all()
    assert lists(split) != lists(
        partition.make(plugin(clients=3, train=0.5, seed=2), data())
    )


def test_an_official_test_split_says_what_clients_are_tested_on():
    split = partition.make(plugin(clients=3), data(official_test=6))
    assert lists(split) == [[1, 3], [2], [0, 4, 5], [7], [6, 9, 10], [8, 11]]


def test_fewer_clients_are_drawn_with_the_seed():
    splits = [
        partition.make(plugin(clients=2, seed=seed), data(official_test=6))
        for seed in range(9)
    ]
    drawn = {str(split.train) for split in splits}
    assert drawn == {
        str([np.array(one) for one in two])
        for two in (([1, 3], [2]), ([1, 3], [0, 4, 5]), ([2], [0, 4, 5]))
    }
    [note] = splits[0].notes
    assert note.startswith("2 of 3 clients of 'toy' ")


@pytest.mark.parametrize("suffix", ["json", "h5"])
def test_lists_in_a_file(tmp_path, suffix):
    whole = write(tmp_path / f"whole.{suffix}", LISTS)
    split = partition.make(plugin(clients=2, lists=whole), data(named=False))
    assert [
        sorted([*train, *test])
        for train, test in zip(split.train, split.test, strict=True)
    ] == [[0, 1, 2, 5], [3, 4, 6, 7]]
    assert [len(train) for train in split.train] == [3, 3]
    apart = write(tmp_path / f"apart.{suffix}", APART)
    split = partition.make(plugin(clients=2, lists=apart), data())
    assert lists(split) == [[0, 1], [3, 4], [2], [2]]
    split.save(tmp_path / "partition.h5")
    again = partition.make(
        plugin(clients=2, lists=apart, file=str(tmp_path / "partition.h5")), data()
    )
    assert again.equals(split)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, "lists.json: "),
        ({"train": [0, 1], "test": [2, 3]}, "lists.json: "),
        ("[1, 2]", "lists.json: "),
        ("{", "JSON"),
        ('{"a": [0, 1], "b": [2, 3], "a": [4, 5]}', "'a'"),
        ({"a": [0, 1.5]}, " 1.5)"),
        ({"a": [0, True]}, " True)"),
        ({"a": [0, 2**63]}, "lists.json: "),
        ({"a": "text"}, "'text'"),
        ({"a": {"train": [1]}}, "lists.json: "),
        ({"a": {"train": [1], "test": [2], "valid": [3]}}, "lists.json: "),
        ({"a": [3, 1, 3]}, "client 'a' has sample 3 "),
        ({"a": [0, 1], "b": {"train": [2], "test": [3]}}, "lists.json: "),
        ({"a": [0, 1], "b": []}, "client 'b' has 0 "),
        ({"a": [0], "b": [1, 2]}, "client 'a' has 0 "),
        ({"a": [0, 1]}, "partition.clients = 2: "),
        ({"a": [0, 1], "b": [2, 12]}, "client 'b' has sample 12, "),
        ({"a": [-1, 1], "b": [2, 3]}, "client 'a' has sample -1"),
        (
            {"a": {"train": [0], "test": [0]}, "b": {"train": [1], "test": [2]}},
            "client 'a' has sample 0 ",
        ),
    ],
)  # fmt: skip
def test_lists_that_are_none_are_refused(tmp_path, content, told):
    path = write(tmp_path / "lists.json", content)
    with expect_refusal() as caught:
        partition.make(plugin(clients=2, lists=path), data())
    assert told in str(caught.value) and path in str(caught.value)


def test_samples_of_several_clients_and_of_none_are_noted(tmp_path):
    path = write(tmp_path / "lists.json", {"one": [5, 0, 1, 2], "two": [2, 5, 6, 7]})
    shared, unused, _ = partition.make(plugin(clients=2, lists=path), data()).notes
    assert shared.startswith(f"{path}: 2 of 12 ")
    assert unused.startswith(f"{path}: 6 of 12 ")
    whole = write(
        tmp_path / "lists.json",
        {"one": [0, 1, 2, 3, 4, 5], "two": [6, 7, 8, 9, 10, 11]},
    )
    assert partition.make(plugin(clients=2, lists=whole), data()).names == [
        "one",
        "two",
    ]
    assert partition.make(plugin(clients=2, lists=whole), data()).notes == []


def test_hdf5_that_is_not_plain_is_refused(tmp_path):
    with h5py.File(tmp_path / "lists.h5", "w") as file:
        file.create_dataset("a", data=np.arange(1000), compression="gzip")
    with expect_refusal(r"lists\.h5: .*'/a'"):
        partition.make(plugin(clients=1, lists=str(tmp_path / "lists.h5")), data())
    with expect_refusal(r"none\.h5: "):
        partition.make(plugin(clients=1, lists=str(tmp_path / "none.h5")), data())


def test_data_without_clients_and_too_few_clients_are_refused():
    with expect_refusal(r"'toy' .* partition\.lists"):
        partition.make(plugin(clients=2), data(named=False))
    with expect_refusal(r"partition\.clients = 4"):
        partition.make(plugin(clients=4), data())
