"""Data sets that name their clients: npz with owners, a folder for each client, LEAF's
JSON.
"""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import _leaf_samples
from hpcfl.errors import UserError
from hpcfl.experiment import config

# 80 letters
PLAY = (
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to su"
)


def load(dataset, path, **options):
    return datasets.load(config.Data(dataset=dataset, file=str(path), options=options))


def owned(data):
    """Sample numbers by client."""
    return {
        name: np.flatnonzero(data.owners.of == number).tolist()
        for number, name in enumerate(data.owners.names)
    }


@pytest.mark.parametrize("client", [np.array([10, 9, 10]), np.array(["b", "a", "b"])])
def test_an_npz_file_with_owners(tmp_path, client):
    np.savez(
        tmp_path / "own.npz",
        x=np.zeros((3, 2)),
        y=np.arange(3),
        client=client,
    )
    assert owned(load("npz", tmp_path / "own.npz")) == {
        str(client[1]): [1],
        str(client[0]): [0, 2],
    }


def test_an_array_of_another_name_is_told(tmp_path):
    np.savez(
        tmp_path / "own.npz", x=np.zeros((3, 2)), y=np.arange(3), clients=np.arange(3)
    )
    with pytest.raises(
        UserError,
        match=r"an array 'client' in an npz file; it has 'clients'; a column",
    ):
        partition.make(by_client(clients=3), load("npz", tmp_path / "own.npz"))


@pytest.mark.parametrize(
    "client", [np.zeros(2, int), np.zeros((3, 1), int), np.zeros(3)]
)
def test_owners_that_are_none_are_refused(tmp_path, client):
    np.savez(
        tmp_path / "own.npz",
        x=np.zeros((3, 2)),
        y=np.arange(3),
        client=client,
    )
    with pytest.raises(
        UserError,
        match=r"own\.npz: client must be \[3\], the number or name of each sample",
    ):
        load("npz", tmp_path / "own.npz")


def folders(root, **clients):
    for name, files in clients.items():
        (root / name).mkdir(parents=True)
        for file, (values, classes) in files.items():
            np.savez(
                root / name / f"{file}.npz",
                x=np.array(values)[:, None],
                y=np.array(classes),
            )
    return root


def test_a_folder_for_each_client(tmp_path):
    root = folders(
        tmp_path / "clients",
        b={"data": ([1.0, 2.0], [0, 1])},
        a={"data": ([3.0, 4.0], [2, 0])},
    )
    data = load("npz-folders", root)
    assert (
        owned(data) == {"a": [0, 1], "b": [2, 3]}
        and data.name == "clients"
        and data.classes == 3
    )
    assert data.x[:, 0].tolist() == [3, 4, 1, 2] and data.official_test == 0


def test_a_folder_with_training_and_test_samples(tmp_path):
    root = folders(
        tmp_path / "clients",
        a={"train": ([1.0, 2.0], [0, 1]), "test": ([3.0], [1])},
        b={"train": ([4.0], [0]), "test": ([5.0, 6.0], [1, 1])},
    )
    data = load("npz-folders", root)
    assert data.x[:, 0].tolist() == [1, 2, 4, 3, 5, 6] and data.official_test == 3
    split = partition.make(by_client(clients=2), data)
    assert [held.tolist() for held in (*split.train, *split.test)] == [
        [0, 1],
        [2],
        [3],
        [4, 5],
    ]


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        ({}, r"must hold a folder for each client, at most 100,000; it holds 0"),
        ({"a": {"data": ([1.0], [0])}, "b": {}}, r"b/data\.npz: no such file"),
        ({"a": {"train": ([1.0], [0])}}, r"a/test\.npz: no such file"),
        (
            {"a": {"data": ([1.0], [0])}, "b": {"data": ([1], [0])}},
            r"b/data\.npz: x is int64 \[n, 1\], but float64 \[n, 1\] in .*a/data\.npz",
        ),
        (
            {"a": {"data": ([1.0], [0])}, "b": {"data": ([[1.0, 2.0]], [0])}},
            r"b/data\.npz: x is float64 \[n, 1, 2\], but float64 \[n, 1\]",
        ),
        (
            {"a": {"data": ([1.0], [0])}, "b": {"data": ([1.0, np.nan], [0, 1])}},
            r"b/data\.npz: x\[1, 0\] is nan",
        ),
        (
            {"a": {"data": ([1.0], [0]), "valid": ([1.0], [0])}},
            r"a/valid\.npz: is not read beside data\.npz",
        ),
        (
            {"a": {part: ([1.0], [0]) for part in ("data", "train", "test")}},
            r"a/data\.npz: is not read beside train\.npz and test\.npz",
        ),
        (
            {
                "a": {"data": ([1.0], [0])},
                "b": {part: ([1.0], [0]) for part in ("train", "test")},
            },
            r"b/data\.npz: no such file; it has test\.npz, train\.npz",
        ),
        (
            {"a": {"data": ([1.0], [0, 1])}},
            r"a/data\.npz: x has the shape \(1, 1\) and y \(2,\)",
        ),
        ({"a": {"data": ([1.0], [-1])}}, r"clients: y must hold class numbers"),
    ],
)
def test_folders_that_are_none_are_refused(tmp_path, clients, told):
    (tmp_path / "clients").mkdir()
    with pytest.raises(UserError, match=told):
        load("npz-folders", folders(tmp_path / "clients", **clients))


def test_a_client_is_named_by_its_folder_alone(tmp_path):
    root = folders(tmp_path / "clients", a={"data": ([1.0], [0])})
    np.savez(root / "a" / "data.npz", x=np.ones((1, 1)), y=[0], client=["b"])
    with pytest.raises(UserError, match=r"data\.npz: has an array 'client'"):
        load("npz-folders", root)
    np.savez(root / "loose.npz", x=np.ones((1, 1)), y=[0])
    with pytest.raises(UserError, match=r"loose\.npz: is in no client's folder"):
        load("npz-folders", root)


def test_a_folder_of_images_is_told_its_reader(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "a" / "0.png")
    with pytest.raises(UserError, match=r"data\.dataset = 'image-folder'"):
        load("npz-folders", tmp_path)


@pytest.mark.parametrize(
    ("values", "is_noted"),
    [([255.0, 0.0], True), ([2.0, 0.5], False), ([0.0, 0.0], False)],
)
def test_clients_with_values_on_another_scale_are_noted(tmp_path, values, is_noted):
    root = folders(
        tmp_path / "clients",
        a={"data": ([0.0, 1.0], [0, 1])},
        b={"data": (values, [0, 1])},
    )
    notes = load("npz-folders", root).notes
    assert any("scaled alike" in note for note in notes) is is_noted


def test_a_file_is_no_folder_of_clients(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be read as a folder of clients"):
        load("npz-folders", tmp_path / "file")


def as_leaf(root, **parts):
    """A folder as LEAF writes it; parts: a list of files, each {user: (x, y)}."""
    for part, files in parts.items():
        (root / part).mkdir(parents=True)
        for number, users in enumerate(files):
            content = {
                "users": list(users),
                "num_samples": [len(y) for _, y in users.values()],
                "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
            }
            (root / part / f"all_data_{number}.json").write_text(json.dumps(content))
    return root


def test_femnist_as_leaf_exports_it(tmp_path):
    white, black = [1.0] * 784, [0.0] * 783 + [1]
    root = as_leaf(
        tmp_path / "femnist",
        train=[{"f1": ([white, black], [0, 3])}, {"f0": ([white], [2])}],
        test=[{"f0": ([black], [1]), "f1": ([white], [3])}],
    )
    data = load("leaf", root)
    assert data.shape == (1, 28, 28) and data.classes == 4 and data.official_test == 2
    assert data.normalise(data.x)[1].flatten().tolist() == [-1.0] * 783 + [1.0]
    assert owned(data) == {"f1": [0, 1, 4], "f0": [2, 3]}
    split = partition.make(by_client(clients=2), data)
    assert [held.tolist() for held in (*split.train, *split.test)] == [
        [0, 1],
        [2],
        [4],
        [3],
    ]


def test_images_of_other_values_than_femnists_are_noted(tmp_path):
    users = {"f0": ([[1.0] * 784], [0]), "f1": ([[0.0, 255.0] * 392], [0])}
    [note] = load("leaf", as_leaf(tmp_path / "femnist", train=[users])).notes
    assert "user 'f1' has values 0 … 255" in note


def test_shakespeare_as_leaf_exports_it(tmp_path):
    assert (
        len(PLAY)
        == _leaf_samples.POSITIONS
        == len(_leaf_samples.LETTERS)
        == len(set(_leaf_samples.LETTERS))
    )
    root = as_leaf(
        tmp_path / "plays", train=[{"HAMLET": ([PLAY, PLAY[:-1] + "é"], ["f", "\n"])}]
    )
    data = load("leaf", root)
    assert (
        data.shape == (80,)
        and data.vocabulary == 81
        and data.classes == 80
        and data.official_test == 0
    )
    read = [
        "?" if number == 0 else _leaf_samples.LETTERS[number - 1]
        for number in data.x[1].tolist()
    ]
    assert "".join(read) == PLAY[:-1] + "?" and data.x.max() <= 80
    assert [_leaf_samples.LETTERS[number] for number in data.y.tolist()] == ["f", "\n"]
    assert data.normalise(data.x) is data.x


def test_sentiment140_as_leaf_exports_it(tmp_path):
    """Rows of id, date, query, user, text, part; a word of test/ alone is unknown."""

    def tweet(text):
        return ["1467810369", "Mon Apr 06", "NO_QUERY", "ann", text, "training"]

    root = as_leaf(
        tmp_path / "sent140",
        train=[{"ann": ([tweet("Sad, so sad"), tweet("Good!")], [0, 1])}],
        test=[{"ann": ([tweet("so good " * 20 + "today")], [1])}],
    )
    data = load("leaf", root)
    # by frequency, then alphabetically: sad ! , good so
    assert data.x[:2, :5].tolist() == [[1, 3, 5, 1, 0], [4, 2, 0, 0, 0]]
    assert data.x[2].tolist() == [5, 4] * 12 + [5]
    assert data.shape == (25,) and data.vocabulary == 6 and data.classes == 2
    assert data.official_test == 1 and data.normalise(data.x) is data.x
    short = as_leaf(tmp_path / "short", train=[{"ann": ([["1", "Mon"]], [0])}])
    with pytest.raises(UserError, match=r"user 'ann': a tweet must be .*; one has 2"):
        load("leaf", short)


def portraits(folder):
    folder.mkdir()
    for number, colour in enumerate([(250, 10, 10), (10, 10, 250)]):
        Image.new("RGB", (178, 218), colour).save(folder / f"00{number}.jpg")
    return folder


def test_celeba_as_leaf_exports_it(tmp_path):
    images = portraits(tmp_path / "img_align_celeba")
    root = as_leaf(
        tmp_path / "celeba",
        train=[{"7": (["001.jpg", "000.jpg"], [1.0, 0.0])}],
        test=[{"7": (["000.jpg"], [0.0])}],
    )
    data = load("leaf", root, images=str(images))
    assert data.shape == (3, 84, 84) and data.x.dtype == torch.uint8
    colours = data.x[:, :, 40, 40].int() - torch.tensor([10, 10, 10])
    assert colours.abs().argmax(dim=1).tolist() == [2, 0, 0]
    assert data.y.tolist() == [1, 0, 0] and data.official_test == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "../000.jpg",
            r"all_data_0\.json: .*user '7': '\.\./000\.jpg' is no name of an image",
        ),
        ("002.jpg", r"002\.jpg: cannot be read as an image \(No such file"),
        ("text.jpg", r"text\.jpg: cannot be read as an image \(cannot identify"),
    ],
)
def test_images_of_celeba_that_are_none_are_refused(tmp_path, name, told):
    images = portraits(tmp_path / "images")
    (images / "text.jpg").write_text("text")
    root = as_leaf(tmp_path / "celeba", train=[{"7": ([name], [1])}])
    with pytest.raises(UserError, match=told):
        load("leaf", root, images=str(images))


def test_the_folder_of_images_belongs_to_celeba(tmp_path):
    root = as_leaf(tmp_path / "celeba", train=[{"7": (["000.jpg"], [1])}])
    with pytest.raises(UserError, match=r"names of images need data\.images"):
        load("leaf", root)
    root = as_leaf(tmp_path / "numbers", train=[{"7": ([[1.0]], [0])}])
    with pytest.raises(
        UserError, match=r"data\.images: the samples of .* name no images"
    ):
        load("leaf", root, images=str(tmp_path))


def test_other_numbers_are_taken_as_they_are(tmp_path):
    data = load(
        "leaf", as_leaf(tmp_path / "synthetic", train=[{"a": ([[0.5, -3.0]], [2])}])
    )
    assert data.normalise(data.x).tolist() == [[0.5, -3.0]] and data.classes == 3
    assert "no sample has the class 0, 1 of 0 … 2" in data.notes[0]


@pytest.mark.parametrize(
    ("users", "told"),
    [
        (
            {"a": ([[1.0], [2.0, 3.0]], [0, 1])},
            "user 'a': samples must be lists of as many numbers each",
        ),
        ({"a": ([[1.0]], [0, 1])}, "user 'a' has 1 samples and 2 classes"),
        ({"a": ([], [])}, "user 'a' has 0 samples and 0 classes"),
        (
            {"a": (["short"], ["b"])},
            "user 'a': texts must have 80 letters, and classes one",
        ),
        ({"a": ([PLAY], [1])}, "user 'a': texts must have 80 letters, and classes one"),
        (
            {"a": ([PLAY], ["ab"])},
            "user 'a': texts must have 80 letters, and classes one",
        ),
        ({"a": ([[0.0], [1e39]], [0, 0])}, r"user 'a': x\[1, 0\] is 1e\+39"),
        ({"a": ([[1.0, float("nan")]], [0])}, r"user 'a': x\[0, 1\] is nan"),
        ({"a": ([[1.0]], [0.5])}, "user 'a': classes must be integers"),
        ({"a": ([[1.0], [2.0]], [0, "1"])}, r"user_data\.a\.y"),
        ({"a": ([[1.0], ["2.0"]], [0, 1])}, r"user_data\.a\.x"),
        ({"a": ([[True]], [0])}, r"user_data\.a\.x"),
        ({"a": ([[1.0]], [-1])}, "user 'a': classes must be from 0 to 99,999"),
        ({"a": ([[1.0]], [10**30])}, "cannot be read"),
        (
            {"a": ([[1.0]], ["b"])},
            "samples must be lists of as many numbers each, classes integers",
        ),
        (
            {"a": ([[1.0]], [0]), "b": ([[1.0, 2.0]], [0])},
            r"user 'b' has samples float32 \[2\], user 'a' in .* has float32 \[1\]",
        ),
        (
            {"a": (7, [0])},
            r"all_data_0\.json: cannot be read as one of LEAF's files \(user_data\.a\.x",
        ),
    ],
)
def test_files_that_are_none_of_leafs_are_refused(tmp_path, users, told):
    root = tmp_path / "leaf"
    (root / "train").mkdir(parents=True)
    content = {
        "users": list(users),
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (root / "train" / "all_data_0.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=told):
        load("leaf", root)


USERS = {"a": ([[1.0], [2.0]], [0, 1]), "b": ([[3.0]], [1])}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"users": ["a", "b", "a"]}, "user 'a' stands twice in 'users'"),
        ({"users": ["a"]}, "'users' has 1 names and 'user_data' 2; .* has 'b'"),
        ({"users": ["a", "b "]}, "only one of them has 'b'"),
        ({"num_samples": [2, 2]}, "user 'b' has 1 samples, 'num_samples' says 2"),
        ({"num_samples": [2]}, "'num_samples' has 1 entries for 2 users"),
    ],
)
def test_what_a_file_of_leaf_says_of_itself_is_compared(tmp_path, change, told):
    root = as_leaf(tmp_path / "leaf", train=[USERS])
    path = root / "train" / "all_data_0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=rf"all_data_0\.json: .*{told}"):
        load("leaf", root)


def test_a_user_of_leaf_may_stand_once(tmp_path):
    root = as_leaf(tmp_path / "two", train=[USERS, {"b": ([[4.0]], [0])}])
    with pytest.raises(UserError, match=r"1\.json: user 'b' is in all_data_0\.json"):
        load("leaf", root)
    root = as_leaf(tmp_path / "twice", train=[USERS])
    path = root / "train" / "all_data_0.json"
    content = {"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": [0]}}}
    text = json.dumps(content).replace(
        '"user_data": {', '"user_data": {"a": {"x": [[2]], "y": [0]}, '
    )
    path.write_text(text)
    with pytest.raises(UserError, match=r"2 lists 'x' for 1 users"):
        load("leaf", root)


@pytest.mark.parametrize("name", ["B", " b", "b\u00a0"])
def test_a_user_of_leaf_has_one_spelling(tmp_path, name):
    root = as_leaf(
        tmp_path / "leaf", train=[USERS], test=[{"a": USERS["a"], name: USERS["b"]}]
    )
    with pytest.raises(UserError, match="user 'b' is spelled"):
        load("leaf", root)


def split_by_users(root):
    """LEAF's ``-t user``: five users to train and three others to test."""
    users = {f"u{number}": ([[float(number)]] * 4, [0, 1] * 2) for number in range(8)}
    train = {name: users[name] for name in list(users)[:5]}
    test = {name: users[name] for name in list(users)[5:]}
    return as_leaf(root, train=[train], test=[test])


def test_leafs_test_users_are_newcomers(tmp_path):
    data = load("leaf", split_by_users(tmp_path / "leaf"))
    split = partition.make(by_client(clients=3), data, newcomers=2)
    assert len(split.names) == 5
    assert set(split.names[:3]) < {"u0", "u1", "u2", "u3", "u4"}
    assert set(split.names[3:]) < {"u5", "u6", "u7"}
    for name, train, test in zip(split.names, split.train, split.test, strict=True):
        assert (len(train), len(test)) == (3, 1)
        values = data.x[np.concatenate([train, test])].flatten().tolist()
        assert values == [float(name[1:])] * 4
    assert "split by users" in split.notes[-1]
    assert "3 users in test/" in data.description.notes[0]


@pytest.mark.parametrize(
    ("clients", "newcomers", "told"),
    [
        (5, 0, r"set newcomers\.clients = 3 \(at most 3\).* partition\.clients = 5"),
        (8, 0, r"set newcomers\.clients = 3 \(at most 3\).* partition\.clients = 5"),
        (5, 4, r"set newcomers\.clients = 3 \(at most 3\)"),
        (6, 2, r"set newcomers\.clients = 2 .* partition\.clients = 5 \(at most 5\)"),
    ],
)
def test_leafs_split_by_users_is_refused_with_the_keys_that_read_it(
    tmp_path, clients, newcomers, told
):
    data = load("leaf", split_by_users(tmp_path / "leaf"))
    with pytest.raises(UserError, match=told):
        partition.make(by_client(clients=clients), data, newcomers=newcomers)


def test_test_users_stay_newcomers_where_groups_have_all_data_each(tmp_path):
    """The groups 0 and 1 of five clients and one newcomer each get all users dealt out."""
    data = load("leaf", split_by_users(tmp_path / "leaf"))
    groups = np.array([0, 0, 1, 1, 0, 1])
    split = partition.make(by_client(clients=4), data, newcomers=2, replicas=groups)
    assert set(split.names[:4]) <= {"u0", "u1", "u2", "u3", "u4"}
    assert set(split.names[4:]) <= {"u5", "u6", "u7"}


def test_a_folder_of_leaf_that_is_not_whole_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"train: must hold LEAF's \.json files, .*; it holds 0"
    ):
        load("leaf", tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text('{"users": ["a"], "user_data": {}}')
    with pytest.raises(
        UserError, match=r"a\.json: .*'users' has 1 names and 'user_data' 0; .* 'a'"
    ):
        load("leaf", tmp_path)
    (tmp_path / "train" / "a.json").unlink()
    os.mkfifo(tmp_path / "train" / "a.json")
    with pytest.raises(
        UserError, match=r"a\.json: cannot be read \(not a regular file\)"
    ):
        load("leaf", tmp_path)


def test_text_is_taken_apart_letter_by_letter():
    assert torch.equal(
        torch.from_numpy(_leaf_samples._letters(["\n }", "z\0é"])),
        torch.tensor([[0, 1, 79], [78, -1, -1]]),
    )
