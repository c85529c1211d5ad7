import json
import os
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.base import Assignment, Draw, MergedScheme, Scheme
from hpcfl.data.partitions.dirichlet import Dirichlet
from hpcfl.data.partitions.iid import Iid
from hpcfl.data.partitions.pathological import Pathological
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.files import hdf5


def dataset(labels, **options):
    labels = torch.as_tensor(labels)
    return datasets.Dataset(
        "toy", torch.zeros(len(labels), 1), labels, int(labels.max()) + 1, **options
    )


TOY = dataset(np.arange(120) % 3)


def lists(split):
    return [held.tolist() for held in (*split.train, *split.test)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", [Pathological(), Dirichlet(), Iid()], ids=lambda scheme: scheme.scheme
)
def test_twenty_clients_share_the_digits(scheme):
    digits = datasets.load(config.Data())
    split = partition.make(scheme, digits)
    everything = np.concatenate([*split.train, *split.test])
    assert sorted(everything) == list(range(1797))
    labels = digits.y.numpy()
    for train, test in zip(split.train, split.test, strict=True):
        assert len(test) >= 1 and len(train) == 3 * (len(train) + len(test)) // 4
        assert (
            train.dtype == test.dtype == np.int64
            and (np.diff(train) > 0).all()
            and (np.diff(test) > 0).all()
        )
    counts = split.counts(labels, 10) + split.counts(labels, 10, "test")
    assert (
        counts.dtype == np.int64
        and counts.sum(0).tolist() == np.bincount(labels).tolist()
    )


def test_the_seed_decides():
    same, other = (
        partition.make(Iid(clients=3), TOY),
        partition.make(Iid(clients=3, seed=2), TOY),
    )
    assert lists(partition.make(Iid(clients=3), TOY)) == lists(same) != lists(other)


def test_the_share_of_training_samples_is_a_key():
    split = partition.make(Iid(clients=3, train=0.5), TOY)
    assert [len(held) for held in split.train] == [20, 20, 20]


def test_too_many_clients_are_refused():
    with pytest.raises(
        UserError, match=r"partition\.clients = 121: there are only 120 samples"
    ):
        partition.make(Iid(clients=121), TOY)


@pytest.mark.parametrize(("clients", "train"), [(120, 0.75), (60, 0.25)])
def test_a_client_without_samples_on_one_side_is_refused(clients, train):
    with pytest.raises(
        UserError,
        match=rf"client 0 gets 0 samples to train.*{clients} clients share 120 samples",
    ):
        partition.make(Iid(clients=clients, train=train), TOY)


def test_a_shared_sample_is_refused():
    class Greedy(MergedScheme):
        scheme: str = "greedy"

        def assign(self, labels, classes, generator):
            return Assignment([np.arange(10), np.arange(9, 20)])

    with pytest.raises(
        UserError, match="'greedy' gave a sample to more than one client"
    ):
        partition.make(Greedy(clients=2), TOY)


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


def test_a_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "p.h5"
    split = partition.make(Pathological(clients=2, classes_per_client=1), TOY)
    assert split.notes
    split.save(path)
    split.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["p.h5"]
    again = partition.make(
        Pathological(clients=2, classes_per_client=1, file=str(path)), TOY
    )
    assert vars(again) | {"train": 0, "test": 0} == vars(split) | {
        "train": 0,
        "test": 0,
    }
    assert lists(again) == lists(split)


def test_a_file_of_another_scheme_counts_and_is_noted(tmp_path):
    path = tmp_path / "p.h5"
    partition.make(Iid(clients=3, seed=7), TOY).save(path)
    [note] = partition.make(Dirichlet(clients=3, file=str(path)), TOY).notes
    assert "it was drawn with scheme = 'iid', seed = 7" in note


def test_a_file_of_another_data_set_with_the_same_labels_is_noted(tmp_path):
    path = tmp_path / "partition.h5"
    partition.make(Iid(clients=3), replace(TOY, name="other")).save(path)
    [note] = partition.make(Iid(clients=3, file=str(path)), TOY).notes
    assert "'other'" in note and f"'{TOY.name}'" in note


def test_files_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "p.h5"
    partition.make(Iid(clients=3), TOY).save(path)
    with pytest.raises(
        UserError,
        match=r"is for 'toy' with 120 samples, not for these labels of 'toy' with 120",
    ):
        partition.make(
            Iid(clients=3, file=str(path)), dataset((np.arange(120) + 1) % 3)
        )
    with pytest.raises(UserError, match=r"has 3 clients, partition\.clients = 4"):
        partition.make(Iid(clients=4, file=str(path)), TOY)
    with pytest.raises(UserError, match="No such file"):
        partition.Split.load(tmp_path / "q.h5")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "p.h5"
    partition.make(Iid(clients=3), TOY).save(path)
    whole = path.read_bytes()
    flipped = whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:]
    for damaged in (
        whole[:-1],
        whole[:600],
        flipped,
        whole.replace(b"sha256=", b"sha256=0"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"p\.h5: .*its checksum is wrong"):
            partition.Split.load(path)
    path.write_text("something else")
    with pytest.raises(
        UserError, match=r"p\.h5: .*not a file of hpcfl's kind 'partition'"
    ):
        partition.Split.load(path)


def test_clients_names_are_kept_and_are_as_many(tmp_path):
    split = replace(partition.make(Iid(clients=3), TOY), names=["ann", "bob", "eve"])
    split.save(tmp_path / "p.h5")
    assert partition.Split.load(tmp_path / "p.h5").names == ["ann", "bob", "eve"]
    replace(split, names=["ann"]).save(tmp_path / "p.h5")
    with pytest.raises(UserError, match=r"p\.h5: .*it names 1 of 3 clients"):
        partition.Split.load(tmp_path / "p.h5")


TRAIN, TEST = [[0, 1], [4, 5], [8]], [[2, 3], [6], [9]]
GLOBAL = [[10, 11]] * 3


def write(path, train, test, scheme="iid", arrays=(), **said):
    """A partition file of these lists, with arrays and words of it replaced."""
    parts = (
        [np.array(own, None if own else int) for own in part] for part in (train, test)
    )
    partition.Split(
        *parts, 1, "toy", 120, "0" * 64, {"scheme": scheme} | said.pop("also", {})
    ).save(path)
    found, texts = hdf5.decode(hdf5.unseal("partition", path.read_bytes()))
    texts = {
        "partition": said.pop("text", json.dumps(json.loads(texts["partition"]) | said))
    }
    kept = {
        name: array
        for name, array in (found | dict(arrays)).items()
        if array is not None
    }
    path.write_bytes(hdf5.seal("partition", hdf5.encode(kept, texts)))
    return path


@pytest.mark.parametrize(
    ("train", "test", "told"),
    [
        ([[0, 1], [4, -1], [8]], TEST, "client 1: no sample -1 among 120"),
        ([[0, 1], [4, 120], [8]], TEST, "client 1: no sample 120 among 120"),
        (
            [[0, 1], [4, 5], [8]],
            [[2, 3], [6], [2**63 - 1]],
            "client 2: no sample 9223372036854775807 among 120",
        ),
        (
            [[0, 1], [5, 4], [8]],
            TEST,
            "client 1: sample numbers must ascend, none twice",
        ),
        (
            [[0, 1], [4, 4], [8]],
            TEST,
            "client 1: sample numbers must ascend, none twice",
        ),
        ([[0, 1], [4, 6], [8]], TEST, "client 1: sample 6 is to train and to test on"),
        (
            [[0, 1], [4, 10], [8]],
            GLOBAL,
            "client 1: sample 10 is to train and to test on",
        ),
        ([[0, 1], [1, 5], [8]], TEST, "clients 0 and 1 both have sample 1"),
        ([[0, 1], [1, 5], [8]], GLOBAL, "clients 0 and 1 both have sample 1"),
        (
            [[0, 1], [4, 5], [8]],
            [[2, 3], [6], [6]],
            "clients 1 and 2 both have sample 6",
        ),
        (
            [[0, 1], [4, 5], [6]],
            [[2, 3], [6], [9]],
            "clients 1 and 2 both have sample 6",
        ),
        ([[0, 1], [], [8]], TEST, "client 1 has no samples to train on"),
        ([[0, 1], [4, 5]], TEST, "as many clients must train as are tested"),
        (
            [[0.5, 1.0], [4, 5], [8]],
            TEST,
            r"'train' must be a list of integers, not float64 \[5\]",
        ),
    ],
)
def test_files_that_hold_no_partition_are_refused(tmp_path, train, test, told):
    path = write(tmp_path / "p.h5", train, test)
    with pytest.raises(
        UserError, match=rf"^{path}: cannot be used as a partition file \({told}\)$"
    ):
        partition.Split.load(path)


@pytest.mark.parametrize(
    ("name", "array", "told"),
    [
        (
            "train_offsets",
            [1, 2, 4, 5],
            "train_offsets must ascend from 0 to 5, the length of train",
        ),
        ("train_offsets", [0, 2, 4, 6], "train_offsets must ascend from 0 to 5"),
        ("train_offsets", [0, 4, 2, 5], "must ascend"),
        ("train_offsets", [0], "must ascend"),
        ("train_offsets", [[0, 2, 4, 5]], "must be a list of integers, not int64"),
        ("test", None, "'test' must be a list of integers, not nothing"),
        (
            "test",
            np.array([2**64 - 1, 3, 6, 9], np.uint64),
            "client 0: no sample -1 among 120",
        ),
    ],
)
def test_arrays_that_are_no_lists_are_refused(tmp_path, name, array, told):
    path = write(
        tmp_path / "p.h5",
        TRAIN,
        TEST,
        arrays={name: array if array is None else np.asarray(array)},
    )
    with pytest.raises(UserError, match=told):
        partition.Split.load(path)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"samples": 120.0}, "samples: Input should be a valid integer"),
        ({"samples": -1}, "samples: Input should be greater than 0"),
        ({"notes": [3]}, "notes.0: Input should be a valid string"),
        ({"labels_sha256": 3}, "labels_sha256: Input should"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"text": "[" * 10_000}, "Invalid JSON: recursion limit"),
        ({"text": "{}"}, "attempts: Field required"),
        ({"text": "[1]"}, "Input should be an object"),
        ({"text": '{"attempts": ' + "9" * 5000}, "Invalid JSON: number out of range"),
    ],
)
def test_words_that_do_not_belong_to_a_partition_are_refused(tmp_path, said, told):
    path = write(tmp_path / "p.h5", TRAIN, TEST, **said)
    with pytest.raises(
        UserError, match=rf"^{path}: cannot be used as a partition file \(.*{told}"
    ) as caught:
        partition.Split.load(path)
    assert "\n" not in str(caught.value)


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
def test_schemes_that_let_clients_share_or_repeat_samples_may(
    tmp_path, train, test, scheme, also
):
    path = write(tmp_path / "p.h5", train, test, scheme, also=also)
    assert lists(partition.Split.load(path)) == [*train, *test]


def test_a_pipe_as_partition_file(tmp_path):
    os.mkfifo(tmp_path / "p.h5")
    with pytest.raises(
        UserError,
        match=r"p\.h5: cannot be read as a partition file \(not a regular file\)",
    ):
        partition.Split.load(tmp_path / "p.h5")


def test_a_link_to_a_partition_file_is_followed(tmp_path):
    write(tmp_path / "p.h5", TRAIN, TEST)
    (tmp_path / "link.h5").symlink_to("p.h5")
    assert lists(partition.Split.load(tmp_path / "link.h5")) == [*TRAIN, *TEST]


def test_partitions_are_the_same_if_samples_and_labels_are(tmp_path):
    one = partition.make(Iid(clients=3), TOY)
    assert one.same(
        replace(
            one,
            attempts=9,
            notes=["x"],
            scheme={},
            dataset="other",
        )
    )
    assert not one.same(replace(one, labels_sha256="1" * 64))
    assert not one.same(partition.make(Iid(clients=4), TOY)) and not one.same(
        partition.make(Iid(clients=3, seed=2), TOY)
    )
    assert not one.same(replace(one, test=one.test[::-1]))
    assert not one.same(
        replace(one, train=[*one.train, one.test[0]], test=one.test[1:])
    )


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ([0, 120], "client 0: no sample 120 among 120"),
        ([3, 9], "client 0: sample 9 is to train and to test on"),
    ],
)
def test_a_scheme_that_draws_no_partition_is_refused(train, told):
    class Broken(Scheme):
        scheme: str = "broken"

        def draw(self, labels, classes, official_test):
            return Draw([np.array(train)], [np.array([9])])

    with pytest.raises(
        UserError, match=f"partition.scheme = 'broken' draws no partition: {told}"
    ):
        partition.make(Broken(clients=1), TOY)


def test_files_are_plain_hdf5(tmp_path):
    partition.make(Iid(clients=3), TOY).save(tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["train_offsets"][:].tolist() == [0, 30, 60, 90] and file[
            "test"
        ].shape == (30,)
        assert '"scheme": "iid"' in file.attrs["partition"]
