"""Tiny-ImageNet, and pictures that are decoded once into one file."""

import os

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import expect_refusal
from user_data import load, refusal

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.iid import Iid
from hpcfl.data.sources import pictures, tiny_imagenet
from hpcfl.data.sources.tiny_imagenet import TinyImageNet


@pytest.fixture
def tiny_images(tmp_path):
    """Write two classes of three training images and four validation images; the colour
    of an image is its number.
    """
    folder = tmp_path / "data" / tiny_imagenet.FOLDER
    words = ["n02", "n01"]  # not in alphabetical order
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(words) + "\n")
    for word in words:
        (folder / "train" / word / "images").mkdir(parents=True)
        for i in range(3):
            mode, colour = (
                ("L", 10 * i + 100) if i == 1 else ("RGB", (10 * i + 100, 50, 200))
            )
            Image.new(mode, (64, 64), colour).save(
                folder / "train" / word / "images" / f"{word}_{i}.JPEG", quality=95
            )
    for i in range(4):
        Image.new("RGB", (64, 64), (20 * i, 0, 0)).save(
            folder / "val" / "images" / f"val_{i}.JPEG", quality=95
        )
    (folder / "val" / "val_annotations.txt").write_text(
        "".join(
            f"val_{i}.JPEG\t{word}\t0\t32\t44\t62\n"
            for i, word in enumerate(["n02", "n01", "n02", "n02"])
        )
    )
    return folder


def test_folders_are_read(tiny_images):
    data = load("tiny-imagenet", tiny_images.parent)
    assert data.shape == (3, 64, 64) and data.x.dtype == torch.uint8
    assert data.classes == 2 and data.official_test == 4
    # n01 before n02; validation images in the order of the annotations
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 1, 1]
    assert abs(int(data.x[1, 0, 0, 0]) - 110) <= 2  # a greyscale image
    assert (data.x[1, 0] == data.x[1, 2]).all()
    assert abs(int(data.x[8, 0, 5, 5]) - 40) <= 3
    assert abs(int(data.x[0, 2, 5, 5]) - 200) <= 3


def test_schemes_that_merge_deal_out_the_training_folder_alone(tiny_images):
    data = load("tiny-imagenet", tiny_images.parent)
    split = partition.make(Iid(clients=2, train=0.5), data)
    assert sorted(np.concatenate([*split.train, *split.test])) == list(range(6))


def test_images_are_decoded_once_where_they_are_downloaded(tiny_images, monkeypatch):
    """The images exist, so there is no download."""
    first = load("tiny-imagenet", tiny_images.parent)
    assert not (tiny_images / pictures.FILE).exists()  # a run writes no data
    datasets.download("tiny-imagenet", tiny_images.parent)
    monkeypatch.setattr(TinyImageNet, "decode", None)
    mapped = load("tiny-imagenet", tiny_images.parent)
    assert torch.equal(first.x, mapped.x) and torch.equal(first.y, mapped.y)
    assert mapped.official_test == first.official_test == 4
    mapped.x[0] = 7
    assert torch.equal(load("tiny-imagenet", tiny_images.parent).x, first.x)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content.replace(b"image", b"imago"),
        lambda content: b"PK" + content,
    ],
)
def test_decoded_images_that_are_damaged_are_refused(tiny_images, damage):
    datasets.download("tiny-imagenet", tiny_images.parent)
    path = tiny_images / pictures.FILE
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with expect_refusal(rf"^{path}: .* hpcfl data download tiny-imagenet"):
        load("tiny-imagenet", tiny_images.parent)
    datasets.download("tiny-imagenet", tiny_images.parent)
    assert path.read_bytes() == whole


def test_images_that_cannot_be_decoded_leave_no_file(tiny_images):
    before = sorted(tiny_images.iterdir())
    image = tiny_images / "val" / "images" / "val_3.JPEG"
    image.write_bytes(b"not an image")
    with expect_refusal(r"val_3\.JPEG: "):
        datasets.download("tiny-imagenet", tiny_images.parent)
    (tiny_images / pictures.FILE).mkdir()
    Image.new("RGB", (64, 64)).save(image)
    with expect_refusal(r"hpcfl-decoded\.npy: .*Is a directory"):
        datasets.download("tiny-imagenet", tiny_images.parent)
    (tiny_images / pictures.FILE).rmdir()
    assert sorted(tiny_images.iterdir()) == before


def test_an_invalid_image_is_refused_with_its_name(tiny_images):
    path = tiny_images / "train" / "n01" / "images" / "n01_0.JPEG"
    whole = path.read_bytes()
    root = tiny_images.parent
    Image.new("RGB", (64, 32)).save(path)
    assert "n01_0.JPEG: 64×32" in refusal("tiny-imagenet", root)
    Image.new("RGB", (64, 64)).save(path, format="PNG")
    assert "n01_0.JPEG: " in refusal("tiny-imagenet", root)
    # a JPEG of a few hundred bytes that declares 65,500 × 65,500 pixels, 12.9 GB
    frame = whole.index(b"\xff\xc0") + 5
    for side, expected in ((65_500, "exceeds limit of"), (10_000, "must be 64×64")):
        size = 2 * side.to_bytes(2, "big")
        path.write_bytes(whole[:frame] + size + whole[frame + 4 :])
        assert expected in refusal("tiny-imagenet", root)
    path.unlink()
    os.mkfifo(path)
    assert "(not a regular file)" in refusal("tiny-imagenet", root)


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("val/val_annotations.txt", "val_0.JPEG\tn09\t0", "line 5 "),
        ("val/val_annotations.txt", "../../../secret.JPEG\tn01\t0", "line 5 "),
        ("val/val_annotations.txt", "val_0.JPEG", "line 5 "),
        ("wnids.txt", "../..", "line 3 must begin with WORDNET-ID; it is '../..'"),
        ("wnids.txt", "\n".join(f"n{i}" for i in range(300)), ": 302 "),
    ],
)  # fmt: skip
def test_lists_of_images_are_checked(tiny_images, file, line, expected):
    with open(tiny_images / file, "a") as content:
        content.write(line + "\n")
    message = refusal("tiny-imagenet", tiny_images.parent)
    assert message.startswith(str(tiny_images / file)) and expected in message


def test_lists_that_are_no_text_or_missing_are_refused(tiny_images):
    (tiny_images / "wnids.txt").write_bytes(b"\xff\xfe")
    assert "wnids.txt: " in refusal("tiny-imagenet", tiny_images.parent)
    assert "hpcfl data download tiny-imagenet" in refusal("tiny-imagenet", tiny_images)


def test_statistics_are_those_of_imagenet(tiny_images):
    data = load("tiny-imagenet", tiny_images.parent, normalise="statistics")
    assert data.mean == (0.485, 0.456, 0.406) and data.std == (0.229, 0.224, 0.225)
