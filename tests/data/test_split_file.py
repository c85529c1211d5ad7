"""Partition files: a saved file is read, any other content is refused."""

import json
import os
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.data import partition
from hpcfl.data.datasets import Dataset
from hpcfl.data.partition import Split
from hpcfl.data.partitions.iid import Iid
from hpcfl.files import hdf5

TOY = Dataset("toy", torch.zeros(120, 1), torch.arange(120) % 3, 3)
TRAIN, TEST = [[0, 1], [4, 5], [8]], [[2, 3], [6], [9]]
GLOBAL = [[10, 11]] * 3


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p.h5"


def save(path, train=TRAIN, test=TEST, scheme="iid", arrays=(), also=(), **entries):
    """Write a partition file of these lists, with replaced arrays and words."""
    parts = []
    for part in (train, test):
        parts.append([np.array(own, None if own else int) for own in part])
    drawn = {"scheme": scheme, **dict(also)}
    Split(*parts, 1, "toy", 120, "0" * 64, drawn).save(path)
    found, texts = hdf5.decode(hdf5.unseal("partition", path.read_bytes()))
    text = entries.pop("text", json.dumps(json.loads(texts["partition"]) | entries))
    kept = {
        name: array
        for name, array in (found | dict(arrays)).items()
        if array is not None
    }
    path.write_bytes(hdf5.seal("partition", hdf5.encode(kept, {"partition": text})))


def refusal(path):
    """Return the error line for a refused file."""
    with expect_refusal(rf"^{path}: ") as caught:
        Split.load(path)
    return str(caught.value)


def test_files_are_plain_hdf5(path):
    partition.make(Iid(clients=3), TOY).save(path)
    with h5py.File(path) as file:
        assert file["train_offsets"][:].tolist() == [0, 30, 60, 90]
        assert file["test"].shape == (30,)
        assert '"scheme": "iid"' in file.attrs["partition"]


def test_damaged_files_are_refused(path):
    partition.make(Iid(clients=3), TOY).save(path)
    whole = path.read_bytes()
    flipped = whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:]
    renamed = whole.replace(b"sha256=", b"sha256=0")
    for damaged in (whole[:-1], whole[:600], flipped, renamed):
        path.write_bytes(damaged)
        assert "checksum" in refusal(path)
    path.write_text("something else")
    assert "'partition'" in refusal(path)
    path.unlink()
    os.mkfifo(path)
    refusal(path)


def test_clients_names_are_kept_and_are_as_many(path):
    split = replace(partition.make(Iid(clients=3), TOY), names=["ann", "bob", "eve"])
    split.save(path)
    assert Split.load(path).names == ["ann", "bob", "eve"]
    replace(split, names=["ann"]).save(path)
    assert "1 of 3 clients" in refusal(path)


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ([[0, 1], [4, -1], [8]], TEST, "client 1: sample -1 "),
        ([[0, 1], [4, 120], [8]], TEST, "client 1: sample 120 "),
        ([[0, 1], [5, 4], [8]], TEST, "client 1: sample numbers"),
        ([[0, 1], [4, 4], [8]], TEST, "client 1: sample numbers"),
        ([[0, 1], [4, 6], [8]], TEST, "client 1: sample 6 "),
        ([[0, 1], [4, 10], [8]], GLOBAL, "client 1: sample 10 "),
        ([[0, 1], [1, 5], [8]], GLOBAL, "clients 0 and 1 both have sample 1"),
        (TRAIN, [[2, 3], [6], [6]], "clients 1 and 2 both have sample 6"),
        ([[0, 1], [4, 5], [6]], TEST, "clients 1 and 2 both have sample 6"),
        ([[0, 1], [], [8]], TEST, "client 1 "),
        ([[0, 1], [4, 5]], TEST, "clients"),
        ([[0.5, 1.0], [4, 5], [8]], TEST, "'train' must be a 1-D array of integers"),
    ],
)  # fmt: skip
def test_lists_that_are_no_partition_are_refused(path, train, test, expected):
    save(path, train, test)
    assert expected in refusal(path)


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("train_offsets", [1, 2, 4, 5], "train_offsets must ascend from 0 to 5"),
        ("train_offsets", [0, 2, 4, 6], "train_offsets must ascend from 0 to 5"),
        ("train_offsets", [0, 4, 2, 5], "must ascend"),
        ("train_offsets", [0], "must ascend"),
        (
            "train_offsets",
            [[0, 2, 4, 5]],
            "'train_offsets' must be a 1-D array of integers",
        ),
        ("test", None, "'test' must be a 1-D array of integers; it is missing"),
        ("test", np.array([2**64 - 1, 3, 6, 9], np.uint64), "client 0: sample -1"),
    ],
)
def test_arrays_that_are_no_lists_are_refused(path, name, array, expected):
    save(path, arrays={name: array if array is None else np.asarray(array)})
    assert expected in refusal(path)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"samples": -1}, "'samples': Input should be greater than 0"),
        ({"samples": 120.0}, "'samples': Input should be a valid integer"),
        ({"labels_sha256": 3}, "'labels_sha256': Input should"),
        ({"colour": "red"}, "'colour': Extra inputs are not permitted"),
        ({"text": "[" * 10_000}, "nested too deeply"),
        ({"text": "{}"}, "'attempts': Field required"),
        ({"text": '{"attempts": ' + "9" * 5000}, "an integer of 5000 digits"),
    ],
)
def test_words_that_do_not_belong_to_a_partition_are_refused(path, entries, expected):
    save(path, **entries)
    assert expected in refusal(path)


@pytest.mark.parametrize(
    ("train", "test", "scheme", "also"),
    [
        (TRAIN, TEST, "iid", {}),
        (TRAIN, GLOBAL, "dirichlet-min", {}),
        ([[0, 1], [1, 5], [8]], TEST, "client-dirichlet", {}),
        (TRAIN, [[2, 3], [2], [9]], "pathological-pairs", {}),
        ([[1, 1], [4, 4], [8]], TEST, "grouped", {"replacement": True}),
        ([[1, 0], [0, 1], [8]], TEST, "tiny:Counts", {}),
    ],
)
def test_schemes_let_clients_share_or_repeat_samples(path, train, test, scheme, also):
    save(path, train, test, scheme, also=also)
    link = path.with_name("link.h5")
    link.symlink_to("p.h5")
    split = Split.load(link)
    assert [held.tolist() for held in (*split.train, *split.test)] == [*train, *test]
