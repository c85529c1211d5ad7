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


def split(official_test=0, named=True, **keys):
    """Return a partition of twelve samples, by default into two clients."""
    data = Dataset(
        "toy",
        torch.zeros(12, 1),
        torch.arange(12) % 3,
        3,
        official_test=official_test,
        owners=number_owners(NAMES) if named else None,
    )
    return partition.make(plugin(**{"clients": 2, **keys}), data)


def lists(split):
    """Return the training samples of each client, and then the test samples."""
    return [held.tolist() for held in (*split.train, *split.test)]


def write(path, content):
    if path.suffix == ".json":
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    else:
        with h5py.File(path, "w") as file:
            for name, held in content.items():
                parts = held if isinstance(held, dict) else {"": held}
                for part, samples in parts.items():
                    file.create_dataset(f"{name}/{part}".rstrip("/"), data=samples)
    return str(path)


def test_each_client_has_its_own_samples_cut_as_in_other_schemes():
    found = split(clients=3, train=0.5)
    for client, name in enumerate(["ann", "bob", "eve"]):
        train, test = found.train[client], found.test[client]
        assert sorted([*train, *test]) == np.flatnonzero(name == NAMES).tolist()
        assert len(train) == (name == NAMES).sum() // 2 and (np.diff(train) > 0).all()
    assert lists(found) != lists(split(clients=3, train=0.5, seed=2))


def test_an_official_test_split_defines_the_clients_test_samples():
    expected = [[1, 3], [2], [0, 4, 5], [7], [6, 9, 10], [8, 11]]
    assert lists(split(official_test=6, clients=3)) == expected


def test_fewer_clients_are_drawn_with_the_seed():
    splits = [split(official_test=6, seed=seed) for seed in range(9)]
    drawn = {str(lists(one)[:2]) for one in splits}
    assert drawn == {"[[1, 3], [2]]", "[[1, 3], [0, 4, 5]]", "[[2], [0, 4, 5]]"}
    [note] = splits[0].notes
    assert note.startswith("2 of 3 clients of 'toy' ")


@pytest.mark.parametrize("suffix", ["json", "h5"])
def test_lists_in_a_file(tmp_path, suffix):
    whole = write(tmp_path / f"whole.{suffix}", LISTS)
    one, two, first, second = lists(split(named=False, lists=whole))
    assert len(one) == len(two) == 3
    assert sorted(one + first) == sorted(LISTS["one"])
    assert sorted(two + second) == sorted(LISTS["two"])
    apart = write(tmp_path / f"apart.{suffix}", APART)
    found, file = split(lists=apart), tmp_path / "partition.h5"
    assert lists(found) == [[0, 1], [3, 4], [2], [2]]
    found.save(file)
    assert split(lists=apart, file=str(file)).equals(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "lists.json: "),
        ({"train": [0, 1], "test": [2, 3]}, "lists.json: "),
        ("[1, 2]", "lists.json: "),
        ("{", "JSON"),
        ('{"a": [0, 1], "b": [2, 3], "a": [4, 5]}', "'a'"),
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
def test_invalid_lists_are_refused(tmp_path, content, words):
    path = write(tmp_path / "lists.json", content)
    with expect_refusal() as caught:
        split(lists=path)
    assert words in str(caught.value) and path in str(caught.value)


def test_samples_of_several_clients_or_none_and_separate_tests_are_noted(tmp_path):
    path = write(tmp_path / "lists.json", {"one": [5, 0, 1, 2], "two": [2, 5, 6, 7]})
    shared, unused, _ = split(lists=path).notes
    assert shared.startswith(f"{path}: 2 of 12 ")
    assert unused.startswith(f"{path}: 6 of 12 ")
    halves = {"one": list(range(6)), "two": list(range(6, 12))}
    found = split(lists=write(tmp_path / "lists.json", halves))
    assert found.names == ["one", "two"] and found.notes == []
    (note,) = split(lists=path, official_test=5).notes
    assert path in note and " 7 training" in note and " 5 test" in note


def test_hdf5_that_is_not_plain_is_refused(tmp_path):
    with h5py.File(tmp_path / "lists.h5", "w") as file:
        file.create_dataset("a", data=np.arange(1000), compression="gzip")
    with expect_refusal(r"lists\.h5: .*'a'"):
        split(clients=1, lists=str(tmp_path / "lists.h5"))
    with expect_refusal(r"none\.h5: "):
        split(clients=1, lists=str(tmp_path / "none.h5"))


def test_data_without_clients_and_too_few_clients_are_refused():
    with expect_refusal(r"'toy' .* partition\.lists"):
        split(named=False)
    with expect_refusal(r"partition\.clients = 4"):
        split(clients=4)
