"""LEAF's JSON files (heterogeneity.md D6)."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import expect_refusal
from user_data import load, owned, refusal

from hpcfl.data import partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import leaf

# 80 letters
PLAY = (
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to su"
)


def as_leaf(root, **parts):
    """Write a folder in LEAF's format.

    parts: list of files, each {user: (x, y)}.
    """
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
    assert [held.tolist() for held in split.train] == [[0, 1], [2]]
    assert [held.tolist() for held in split.test] == [[4], [3]]


def test_images_of_other_values_than_femnists_are_noted(tmp_path):
    users = {"f0": ([[1.0] * 784], [0]), "f1": ([[0.0, 255.0] * 392], [0])}
    [note] = load("leaf", as_leaf(tmp_path / "femnist", train=[users])).notes
    assert "user 'f1' has values 0 … 255" in note


def test_shakespeare_as_leaf_exports_it(tmp_path):
    assert len(PLAY) == leaf.POSITIONS == len(leaf.LETTERS) == len(set(leaf.LETTERS))
    root = as_leaf(
        tmp_path / "plays", train=[{"HAMLET": ([PLAY, PLAY[:-1] + "é"], ["f", "\n"])}]
    )
    data = load("leaf", root)
    assert data.shape == (80,)
    assert data.vocabulary == 81
    assert data.classes == 80
    assert data.official_test == 0
    read = [
        "?" if number == 0 else leaf.LETTERS[number - 1]
        for number in data.x[1].tolist()
    ]
    assert "".join(read) == PLAY[:-1] + "?" and data.x.max() <= 80
    assert [leaf.LETTERS[number] for number in data.y.tolist()] == ["f", "\n"]
    assert data.normalise(data.x) is data.x


def test_labels_outside_of_the_alphabet_are_noted(tmp_path):
    users = {"HAMLET": ([PLAY] * 3, ["é", "f", "ß"])}
    data = load("leaf", as_leaf(tmp_path / "plays", train=[users]))
    assert data.y[[0, 2]].tolist() == [79, 79] and " 2 of 3 labels " in data.notes[0]


def test_sentiment140_as_leaf_exports_it(tmp_path):
    """Rows of id, date, query, user, text, part; a word that occurs only in test/ is
    unknown.
    """

    def tweet(text):
        return ["1467810369", "Mon Apr 06", "NO_QUERY", "ann", text, "training"]

    root = as_leaf(
        tmp_path / "sent140",
        train=[{"ann": ([tweet("Sad, so sad"), tweet("Good!")], [0, 1])}],
        test=[{"ann": ([tweet("so good " * 20 + "today")], [1])}],
    )
    data = load("leaf", root)
    # sorted by frequency, then alphabetically: sad ! , good so
    assert data.x[:2, :5].tolist() == [[1, 3, 5, 1, 0], [4, 2, 0, 0, 0]]
    assert data.x[2].tolist() == [5, 4] * 12 + [5]
    assert data.shape == (25,) and data.vocabulary == 6 and data.classes == 2
    assert data.official_test == 1 and data.normalise(data.x) is data.x


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
    ("name", "expected"),
    [
        (
            "../000.jpg",
            "all_data_0.json: cannot be read as one of LEAF's files ('../000",
        ),
        ("002.jpg", "002.jpg: "),
        ("text.jpg", "text.jpg: "),
    ],
)
def test_invalid_images_of_celeba_are_refused(tmp_path, name, expected):
    images = portraits(tmp_path / "images")
    (images / "text.jpg").write_text("text")
    root = as_leaf(tmp_path / "celeba", train=[{"7": ([name], [1])}])
    assert expected in refusal("leaf", root, images=str(images))
    assert "data.images" in refusal("leaf", root)
    root = as_leaf(tmp_path / "numbers", train=[{"7": ([[1.0]], [0])}])
    assert "data.images: " in refusal("leaf", root, images=str(images))


def test_other_numbers_are_taken_as_they_are(tmp_path):
    root = as_leaf(tmp_path / "synthetic", train=[{"a": ([[0.5, -3.0]], [2])}])
    data = load("leaf", root)
    assert data.normalise(data.x).tolist() == [[0.5, -3.0]] and data.classes == 3
    assert "0, 1 of 0 … 2" in data.notes[0]


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ({"a": ([[1.0], [2.0, 3.0]], [0, 1])}, ".json: "),
        ({"a": ([[1.0]], [0, 1])}, "1 samples and 2 classes"),
        ({"a": ([], [])}, "0 samples and 0 classes"),
        ({"a": (["short"], ["b"])}, " 80 letters"),
        ({"a": ([PLAY], [1])}, " 80 letters"),
        ({"a": ([PLAY], ["ab"])}, " 80 letters"),
        ({"a": ([[1.0, float("nan")]], [0])}, "x[0, 1] is nan"),
        ({"a": ([[1.0]], [0.5])}, "classes must be integers"),
        ({"a": ([[1.0]], ["b"])}, "classes must be integers"),
        ({"a": ([[1.0], [2.0]], [0, "1"])}, "user_data.a.y"),
        ({"a": ([[True]], [0])}, "user_data.a.x"),
        ({"a": ([["1", "Mon"]], [0])}, "'Mon'"),
        ({"a": ([[1.0]], [-1])}, "99,999"),
        ({"a": ([[1.0]], [10**30])}, "cannot be read"),
        ({"a": ([[1.0]], [0]), "b": ([[1.0, 2.0]], [0])}, "'b' has samples float32 [2]"),
    ],
)  # fmt: skip
def test_files_in_another_format_are_refused(tmp_path, users, expected):
    line = refusal("leaf", as_leaf(tmp_path / "leaf", train=[users]))
    assert expected in line and "all_data_0.json" in line


USERS = {"a": ([[1.0], [2.0]], [0, 1]), "b": ([[3.0]], [1])}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"users": ["a", "b", "a"]}, "'a' occurs 2 "),
        ({"users": ["a"]}, "'users' and 'user_data' has 'b'"),
        ({"num_samples": [1, 2]}, "'num_samples'"),
    ],
)
def test_lists_of_users_and_numbers_fit_the_samples(tmp_path, change, expected):
    root = as_leaf(tmp_path / "leaf", train=[USERS])
    path = root / "train" / "all_data_0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert expected in refusal("leaf", root)


def test_a_duplicate_user_is_refused(tmp_path):
    root = as_leaf(tmp_path / "two", train=[USERS, {"b": ([[4.0]], [0])}])
    assert "1.json: user 'b' is in all_data_0.json" in refusal("leaf", root)
    root = as_leaf(tmp_path / "twice", train=[USERS])
    path = root / "train" / "all_data_0.json"
    content = {"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": [0]}}}
    again = '"user_data": {"a": {"x": [[2]], "y": [0]}, '
    path.write_text(json.dumps(content).replace('"user_data": {', again))
    assert "2 lists 'x'" in refusal("leaf", root)


@pytest.mark.parametrize("name", ["B", " b", "b\u00a0"])
def test_a_user_has_one_spelling(tmp_path, name):
    parts = {"train": [USERS], "test": [{"a": USERS["a"], name: USERS["b"]}]}
    assert "user 'b' " in refusal("leaf", as_leaf(tmp_path / "leaf", **parts))


def split_by_users(root):
    """Write a folder by LEAF's ``-t user``, with five training users and three other
    test users.
    """
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
    assert "3 users are only in test/" in data.description.notes[0]


@pytest.mark.parametrize(
    ("clients", "newcomers", "expected"),
    [
        (5, 0, r"newcomers\.clients = 3 .* partition\.clients = 5"),
        (8, 0, r"newcomers\.clients = 3 .* partition\.clients = 5"),
        (5, 4, r"newcomers\.clients = 3 .* partition\.clients = 5"),
        (6, 2, r"newcomers\.clients = 2 .* partition\.clients = 5"),
    ],
)
def test_leafs_split_by_users_is_refused_with_the_keys_that_read_it(
    tmp_path, clients, newcomers, expected
):
    data = load("leaf", split_by_users(tmp_path / "leaf"))
    with expect_refusal(expected):
        partition.make(by_client(clients=clients), data, newcomers=newcomers)


def test_test_users_stay_newcomers_where_groups_have_all_data_each(tmp_path):
    """Groups 0 and 1 of five clients and one newcomer each; the users are divided in
    each group.
    """
    data = load("leaf", split_by_users(tmp_path / "leaf"))
    groups = np.array([0, 0, 1, 1, 0, 1])
    split = partition.make(by_client(clients=4), data, newcomers=2, replicas=groups)
    assert set(split.names[:4]) <= {"u0", "u1", "u2", "u3", "u4"}
    assert set(split.names[4:]) <= {"u5", "u6", "u7"}


def test_a_folder_that_is_not_whole_is_refused(tmp_path):
    assert "train: " in refusal("leaf", tmp_path)
    path = tmp_path / "train" / "a.json"
    path.parent.mkdir()
    os.mkfifo(path)
    assert "a.json: " in refusal("leaf", tmp_path)


def test_text_is_taken_apart_letter_by_letter():
    assert torch.equal(
        torch.from_numpy(leaf.number_letters(["\n }", "z\0é"])),
        torch.tensor([[0, 1, 79], [78, -1, -1]]),
    )
