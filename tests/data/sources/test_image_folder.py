"""Images in torchvision's ``ImageFolder`` layout, written by Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image
from user_data import load, refusal

from hpcfl.data import partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.errors import UserError
from hpcfl.experiment import config


def write(root, *files, size=(4, 3), mode="RGB"):
    """Write images by their paths; the values of the first are 0, of the next 10, …."""
    for number, file in enumerate(files):
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.full((size[1], size[0]), 10 * number % 256, np.uint8)
        Image.fromarray(values).convert(mode).save(path)
    return root


def firsts(data):
    """Return the first value of each sample."""
    return data.x[:, 0, 0, 0].tolist()


def test_classes_are_folders_as_for_torchvision(tmp_path, torchvision):
    write(tmp_path, "cat/b.png", "cat/a.PNG", "dog/1.jpg", "ant/0.bmp")
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "cat" / ".DS_Store").write_text("")
    data = load("image-folder", tmp_path)
    theirs = torchvision.datasets.ImageFolder(tmp_path)
    pixels = torchvision.transforms.functional.pil_to_tensor
    for number, (image, label) in enumerate(theirs):
        assert torch.equal(data.x[number], pixels(image))
        assert data.y[number] == label
    assert len(theirs) == len(data.y) and data.shape == (3, 3, 4)
    assert data.x.dtype == torch.uint8 and data.official_test == 0
    assert data.description.classes == tuple(theirs.classes) == ("ant", "cat", "dog")
    assert data.owners is None and data.name == tmp_path.name


def test_train_and_test_are_the_official_split(tmp_path):
    write(tmp_path, "train/b/0.png", "test/b/0.png", "train/a/0.png", mode="L")
    data = load("image-folder", tmp_path)
    assert firsts(data) == [20, 0, 10] and data.y.tolist() == [0, 1, 1]
    assert data.official_test == 1 and data.shape == (1, 3, 4)
    assert "test/ " in data.notes[0]


def test_clients_are_folders_and_classes_are_matched_by_name(tmp_path):
    write(tmp_path, "bob/dog/0.png", "bob/cat/0.png", "ann/dog/0.png", "ann/emu/0.png")
    data = load("image-folder", tmp_path, clients="folder")
    assert data.owners.names == ("ann", "bob")
    assert data.owners.numbers.tolist() == [0, 0, 1, 1]
    assert data.description.classes == ("cat", "dog", "emu")
    assert data.y.tolist() == [1, 2, 0, 1] and firsts(data) == [20, 30, 10, 0]


def test_each_client_may_have_a_test_folder(tmp_path):
    parts = [
        "ann/train/a/0.png",
        "ann/test/a/0.png",
        "bob/train/b/0.png",
        "bob/test/b/0.png",
    ]
    data = load("image-folder", write(tmp_path, *parts), clients="folder")
    split = partition.make(by_client(clients=2), data)
    assert split.names == ["ann", "bob"] and firsts(data) == [0, 20, 10, 30]
    assert [*map(list, split.train), *map(list, split.test)] == [[0], [1], [2], [3]]


def test_a_csv_file_names_the_clients(tmp_path):
    root = write(tmp_path / "images", "train/a/0.png", "train/b/0.png", "test/a/0.png")
    owners = tmp_path / "owners.csv"
    owners.write_text(
        "\ufefffile,client\ntrain/a/0.png,01\ntest/a/0.png,1\ntrain/b/0.png,01\n"
    )
    data = load("image-folder", root, owners=str(owners))
    assert data.owners.names == ("01", "1")
    assert data.owners.numbers.tolist() == [
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file,client\na/0.png,x\n", "b/0.png"),
        ("file,client\na/0.png,x\nb/0.png,y\nb/1.png,y\n", "b/1.png"),
        ("file,client\na/0.png,x\na/0.png,x\n", "'a/0.png' occurs 2 "),
        ("file,client\na/0.png,x\nb/0.png,\n", "'client': row 2 "),
        ("file,client\na/0.png, x\n", "' x' "),
        ("a/0.png,x\nb/0.png,y\n", "'file,client'"),
        ("", "owners.csv: "),
        ('file,client\n"a/0.png', "owners.csv: "),
        ("file,client\na/0.png,\xe9\n", "owners.csv: "),
    ],
)
def test_owners_that_are_not_whole_are_refused(tmp_path, text, expected):
    root = write(tmp_path / "images", "a/0.png", "b/0.png")
    owners = tmp_path / "owners.csv"
    owners.write_text(text, encoding="latin-1")
    line = refusal("image-folder", root, owners=str(owners))
    assert line.startswith(f"{owners}: ") and expected in line


CLIENTS = {"clients": "folder"}


@pytest.mark.parametrize(
    ("files", "keys", "expected"),
    [
        (["ann/cat/0.png"], {}, "ann: is read as a class, but holds the folder 'cat'"),
        (["ann/cat/x/0.png"], CLIENTS, "cat: is read as a class, but holds the folder 'x'"),
        (["a/0.png", "0.png"], {}, "/0.png: "),
        (["train/a/0.png", "test/a/0.png", "valid/a/0.png"], {}, "train, valid; "),
        (["train/0.png", "test/0.png"], {}, "train/0.png: "),
        (["train/0.png", "bus/0.png"], {}, "bus"),
        (["train/a/0.png", "test/a/0.png"], CLIENTS, "into the clients' folders"),
        (["x/train/a/0.png", "x/test/a/0.png", "y/a/0.png"], CLIENTS, "client 'x' "),
        (["train/a/0.png", "test/A/0.png"], {}, "A of test/; classes in train/: a"),
        (["a/0.png", "A/0.png"], {}, "'A' and 'a' "),
        (["x/a b/0.png", "y/ab/0.png"], CLIENTS, "'a b' and 'ab'"),
        (["x/\u00e9/0.png", "y/e\u0301/0.png"], CLIENTS, "differ"),
        (["x/Train/0.png", "x/a/0.png"], CLIENTS, "Train, a; "),
        (["a/0.gif"], {}, "a/0.gif: "),
        ([".cache/0.png", "a/0.png"], {}, ".cache: "),
        (["a/0.png"], {**CLIENTS, "owners": "x.csv"}, "set only one of them"),
        (["a/0.png"], {"owners": "none.csv"}, "none.csv: "),
    ],
)  # fmt: skip
def test_folders_with_two_meanings_are_refused(tmp_path, files, keys, expected):
    root = write(tmp_path / "images", *files)
    assert expected in refusal("image-folder", root, **keys)


def test_a_folder_without_images_is_refused(tmp_path):
    assert "must hold a folder for each class" in refusal("image-folder", tmp_path)
    write(tmp_path, "a/0.png")
    (tmp_path / "b").mkdir()
    assert "classes b" in refusal("image-folder", tmp_path)
    (tmp_path / "b" / "1.png").write_text("text")
    assert "1.png: " in refusal("image-folder", tmp_path)


def test_images_of_two_forms_are_converted_or_refused(tmp_path):
    write(tmp_path, "a/0.png", "a/1.png")
    write(tmp_path, "b/0.png", size=(3, 4))
    line = refusal("image-folder", tmp_path)
    assert "a/0.png is coloured, 3×4 " in line and "data.size" in line
    assert load("image-folder", tmp_path, size=5).shape == (3, 5, 5)
    data = load("image-folder", tmp_path, size=[2, 6])
    assert data.shape == (3, 2, 6) and firsts(data) == [0, 10, 0]
    write(tmp_path, "b/0.png", mode="L")
    assert "b/0.png is grey, 3×4 " in refusal("image-folder", tmp_path)
    assert load("image-folder", tmp_path, channels=1).shape == (1, 3, 4)
    assert load("image-folder", tmp_path, channels=3).shape == (3, 3, 4)


@pytest.mark.parametrize("size", [0, 4097, [4, 5, 6], [0, 4], "4"])
def test_an_invalid_size_is_refused(size):
    data = {"dataset": "image-folder", "file": "photos", "size": size}
    with pytest.raises(UserError, match=r"data\.size = "):
        config.parse({"method": {"name": "fedavg"}, "data": data})


def test_statistics_are_those_of_the_training_images(tmp_path):
    data = load(
        "image-folder",
        write(tmp_path, "train/a/0.png", "train/a/1.png", "test/a/0.png"),
        normalise="statistics",
    )
    # values 0 and 10 of 255 in train/
    assert data.mean == pytest.approx([5 / 255] * 3)
    assert data.std == pytest.approx([5 / 255] * 3)
    assert data.normalise(data.x)[:2, 0, 0, 0].tolist() == pytest.approx([-1, 1])
