"""Tiny-ImageNet, AG News, the spiral and a user's own file."""

import hashlib
import os

import numpy as np
import pytest
import torch
from PIL import Image

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.iid import Iid
from hpcfl.data.sources import _decoded, ag_news, npz, tiny_imagenet
from hpcfl.errors import UserError
from hpcfl.experiment import config


def load(name, root, **keys):
    return datasets.load(config.Data(dataset=name, root=str(root), **keys))


@pytest.fixture
def tiny_images(tmp_path):
    """Two classes of three training images and four validation images; the colour of an
    image is its number.
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


def test_tiny_imagenet_is_read_from_its_folders(tiny_images):
    data = load("tiny-imagenet", tiny_images.parent)
    assert (
        data.shape == (3, 64, 64)
        and data.x.dtype == torch.uint8
        and data.classes == 2
        and data.official_test == 4
    )
    assert data.y.tolist() == [
        0,
        0,
        0,
        1,
        1,
        1,
        1,
        0,
        1,
        1,
    ]  # n01 before n02; validation as annotated
    assert (
        abs(int(data.x[1, 0, 0, 0]) - 110) <= 2 and (data.x[1, 0] == data.x[1, 2]).all()
    )  # a grey one
    assert (
        abs(int(data.x[8, 0, 5, 5]) - 40) <= 3
        and abs(int(data.x[0, 2, 5, 5]) - 200) <= 3
    )


def test_schemes_that_merge_deal_out_the_training_folder_alone(tiny_images):
    data = load("tiny-imagenet", tiny_images.parent)
    split = partition.make(Iid(clients=2, train=0.5), data)
    assert sorted(np.concatenate([*split.train, *split.test])) == list(range(6))


def test_images_are_decoded_once_where_they_are_downloaded(tiny_images, monkeypatch):
    """The images are there, so nothing is fetched."""
    first = load("tiny-imagenet", tiny_images.parent)
    assert not (tiny_images / _decoded.FILE).exists()  # a run writes no data
    datasets.download("tiny-imagenet", tiny_images.parent)
    monkeypatch.setattr(tiny_imagenet, "_decode", None)
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
    path = tiny_images / _decoded.FILE
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.raises(UserError, match=f"^{path}: damaged.* to write it again: hpcfl"):
        load("tiny-imagenet", tiny_images.parent)
    datasets.download("tiny-imagenet", tiny_images.parent)
    assert path.read_bytes() == whole


def test_images_that_cannot_be_decoded_leave_no_file(tiny_images):
    before = sorted(tiny_images.iterdir())
    image = tiny_images / "val" / "images" / "val_3.JPEG"
    image.write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"val_3\.JPEG: cannot be read as an image"):
        datasets.download("tiny-imagenet", tiny_images.parent)
    (tiny_images / _decoded.FILE).mkdir()
    image.unlink()
    Image.new("RGB", (64, 64)).save(image)
    with pytest.raises(UserError, match=r"hpcfl-decoded\.npy: cannot be written"):
        datasets.download("tiny-imagenet", tiny_images.parent)
    (tiny_images / _decoded.FILE).rmdir()
    assert sorted(tiny_images.iterdir()) == before


def test_an_image_that_is_none_is_named(tiny_images):
    path = tiny_images / "train" / "n01" / "images" / "n01_0.JPEG"
    path.write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"n01_0\.JPEG: cannot be read as an image"):
        load("tiny-imagenet", tiny_images.parent)
    Image.new("RGB", (64, 32)).save(path)
    with pytest.raises(UserError, match=r"n01_0\.JPEG: 64×32 pixels, must be 64×64"):
        load("tiny-imagenet", tiny_images.parent)
    assert not list(tiny_images.glob(".*.tmp"))


def test_an_image_bomb_is_refused_by_its_declared_size(tiny_images):
    """A JPEG of a few hundred bytes that declares 65,500 × 65,500 pixels, 12.9 GB."""
    path = tiny_images / "train" / "n01" / "images" / "n01_0.JPEG"
    whole = path.read_bytes()
    frame = whole.index(b"\xff\xc0") + 5
    for side, told in (
        (65_500, r"exceeds limit of \d+ pixels"),
        (10_000, "10000×10000 pixels, must be 64×64"),
    ):
        path.write_bytes(
            whole[:frame] + 2 * side.to_bytes(2, "big") + whole[frame + 4 :]
        )
        with pytest.raises(UserError, match=rf"n01_0\.JPEG: .*{told}"):
            load("tiny-imagenet", tiny_images.parent)


def test_images_are_jpeg_files(tiny_images):
    path = tiny_images / "train" / "n01" / "images" / "n01_0.JPEG"
    Image.new("RGB", (64, 64)).save(path, format="PNG")
    with pytest.raises(UserError, match=r"n01_0\.JPEG: cannot be read as an image"):
        load("tiny-imagenet", tiny_images.parent)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(
        UserError,
        match=r"n01_0\.JPEG: cannot be read as an image \(not a regular file\)",
    ):
        load("tiny-imagenet", tiny_images.parent)


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        (
            "val/val_annotations.txt",
            "val_0.JPEG\tn09\t0",
            "line 5 must begin with IMAGE and the WordNet id of a class",
        ),
        (
            "val/val_annotations.txt",
            "../../../secret.JPEG\tn01\t0",
            "line 5 must begin with IMAGE",
        ),
        (
            "val/val_annotations.txt",
            "val\0.JPEG\tn01\t0",
            r"line 5 must begin with IMAGE.*; it is 'val\\x00\.JPEG",
        ),
        ("val/val_annotations.txt", "val_0.JPEG", "line 5 must begin with IMAGE"),
        ("wnids.txt", "../..", r"line 3 must begin with WORDNET-ID; it is '\.\./\.\.'"),
        ("wnids.txt", "n\0", "line 3 must begin"),
        (
            "wnids.txt",
            "\n".join(f"n{i}" for i in range(300)),
            ": 302 classes; it must have 1 to 256",
        ),
    ],
)
def test_lists_of_images_are_checked(tiny_images, file, line, told):
    with open(tiny_images / file, "a") as content:
        content.write(line + "\n")
    with pytest.raises(UserError, match=rf"^{tiny_images / file}.*{told}") as caught:
        load("tiny-imagenet", tiny_images.parent)
    assert "\n" not in str(caught.value)


def test_lists_of_images_are_text(tiny_images):
    (tiny_images / "wnids.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"wnids\.txt: cannot be read"):
        load("tiny-imagenet", tiny_images.parent)


def test_missing_images_are_told(tmp_path):
    with pytest.raises(
        UserError,
        match=r"no wnids\.txt there; to fetch it: hpcfl data download tiny-imagenet",
    ):
        load("tiny-imagenet", tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'Wall St. Bears Claw Back Into the "Black" (Reuters)',
            "wall st . bears claw back into the black ( reuters )",
        ),
        (
            "it's 3:30; <br />really? yes, no! a-b",
            "it ' s 3 30 really ? yes , no ! a-b",
        ),
        ("  a\\b\tc ", "a\\b c"),
    ],
)
def test_tokens_follow_basic_english(text, expected):
    assert ag_news.tokens(text) == expected.split()


def test_a_vocabulary_is_ordered_by_frequency_then_alphabetically():
    ids, vocabulary = ag_news.encode([["b", "a", "c", "c"], ["x"] * 201])
    assert vocabulary == 5 and ids.shape == (2, 200)
    assert ids[0].tolist() == [4, 3, 2, 2] + [0] * 196 and (ids[1] == 1).all()


@pytest.fixture
def news(tmp_path, monkeypatch):
    parts = {
        "train.csv": b'"3","A title","Some ""words"", here"\n"1","B","more"\n',
        "test.csv": b'"4","C","some"\n',
    }
    (tmp_path / "news").mkdir()
    for file, content in parts.items():
        (tmp_path / "news" / file).write_bytes(content)
    checksums = {
        file: hashlib.md5(content).hexdigest() for file, content in parts.items()
    }
    monkeypatch.setattr(ag_news, "plugin", ag_news.CsvFiles("", "news", checksums))
    return tmp_path


def test_ag_news_is_train_then_test(news):
    data = load("ag-news", news)
    assert (
        data.y.tolist() == [2, 0, 3]
        and data.official_test == 1
        and data.classes == 4
        and not data.notes
    )
    assert data.x.dtype == torch.int32 and data.normalise(data.x) is data.x
    # a title some words , here; "some" is the most frequent
    assert data.x[0, :7].tolist() == [3, 8, 1, 9, 2, 6, 0]
    assert data.vocabulary == 1 + len(
        {"a", "title", "some", "words", ",", "here", "b", "more", "c"}
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            b'"5","C","some"\n',
            "row 1 must begin with a class, 1 or 2 or 3 or 4; it is '5, C, some'",
        ),
        (b'"1","C","some"\nx,y\n', "row 2 must begin with a class"),
        (b'"1","C"\n\n', "row 2 must begin with a class"),
        (b"\xff\xfe", "cannot be read as csv"),
        (b'"1","' + b"x" * 200_000 + b'"', "cannot be read as csv .field larger than"),
    ],
)
def test_rows_without_a_class_are_named(news, monkeypatch, content, told):
    (news / "news" / "test.csv").write_bytes(content)
    monkeypatch.setitem(
        ag_news.plugin.checksums, "test.csv", hashlib.md5(content).hexdigest()
    )
    with pytest.raises(UserError, match=rf"test\.csv: {told}"):
        load("ag-news", news)


def test_the_test_file_alone_is_enough_with_a_note(news):
    (news / "news" / "train.csv").unlink()
    data = load("ag-news", news)
    assert (
        data.y.tolist() == [3]
        and data.official_test == 0
        and "1 samples of test.csv alone" in data.notes[0]
    )


def test_the_spiral_has_arms_of_sixty_degrees():
    data = load("spiral", ".")
    assert data.y.bincount().tolist() == [3100] * 6 and data.official_test == 600
    assert torch.equal(data.normalise(data.x[:5]), data.x[:5])
    radius, angle = (
        data.x.norm(dim=1),
        torch.atan2(data.x[:, 0], data.x[:, 1]) % (2 * torch.pi),
    )
    assert radius.min() == pytest.approx(1) and radius.max() == pytest.approx(10)
    for k in range(6):
        arm = data.y == k
        for ring, expected in ((radius < 1.2, k), (radius > 9.8, k + 1)):
            offset = (angle[arm & ring] - expected * torch.pi / 3 + torch.pi) % (
                2 * torch.pi
            ) - torch.pi
            assert (
                offset.mean() == pytest.approx(0.25, abs=0.1)
                and offset.min() > -0.1
                and offset.max() < 0.6
            )


def test_the_imbalanced_spiral_halves_class_by_class():
    assert load("spiral-imbalanced", ".").y[:-600].bincount().tolist() == [
        3000,
        1500,
        750,
        375,
        187,
        93,
    ]


def own(tmp_path, **arrays):
    np.savez(tmp_path / "own.npz", **arrays)
    return datasets.load(config.Data(dataset="npz", file=str(tmp_path / "own.npz")))


def test_own_images_values_and_tokens(tmp_path):
    y = np.array([0, 2, 1], np.int8)
    images = own(tmp_path, x=np.full((3, 1, 4, 4), 255, np.uint8), y=y)
    assert (
        images.classes == 3
        and images.name == "own"
        and (images.normalise(images.x) == 1).all()
    )
    values = own(tmp_path, x=np.array([[0.5], [2.0], [-1.0]]), y=y)
    assert values.x.dtype == torch.float32 and torch.equal(
        values.normalise(values.x), values.x
    )
    ids = own(tmp_path, x=np.array([[3, 0], [4, 4], [1, 0]]), y=y)
    assert ids.vocabulary == 5 and ids.normalise(ids.x) is ids.x


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        (
            {"x": np.zeros((3, 2)), "Y": [1]},
            "must hold the arrays 'x' and 'y'; it lacks 'y', it has 'x', 'Y'",
        ),
        (
            {"classes": 3},
            "must hold the arrays 'x' and 'y'; it lacks 'x' and 'y', it has 'classes'",
        ),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(2, int)},
            r"x has the shape \(3, 2\) and y \(2,\)",
        ),
        ({"x": np.zeros((3, 2)), "y": np.zeros((3, 1), int)}, r"y \(3, 1\)"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "n at least 1"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(3)},
            "y must hold class numbers 0, 1, …; it is float64",
        ),
        ({"x": np.zeros((3, 2)), "y": np.array([0, -1, 2])}, "it is int64 from -1"),
        ({"x": np.full((3, 2), np.nan), "y": np.zeros(3, int)}, "NaN or infinities"),
        ({"x": np.full((3, 2), -1), "y": np.zeros(3, int)}, "negative token ids"),
        ({"x": np.full((3, 2), "a"), "y": np.zeros(3, int)}, "x must hold numbers"),
        (
            {"x": np.full((3, 2), 1e300), "y": np.zeros(3, int)},
            r"NaN or infinities, which are those beyond 3\.4e\+38",
        ),
        (
            {"x": np.full((3, 2), 10**7), "y": np.zeros(3, int)},
            "x holds the token id 10,000,000; it must be below 10,000,000",
        ),
        (
            {"x": np.full((3, 2), 2**64 - 1, np.uint64), "y": np.zeros(3, int)},
            "x holds the token id 18,446,744,073,709,551,615",
        ),
        (
            {"x": np.zeros((3, 2)), "y": np.array([0, 1, 10**9])},
            "y holds the class number 1,000,000,000; it must be below 100,000",
        ),
        (
            {"x": np.zeros((3, 2)), "y": np.array([0, 1, 2**64 - 1], np.uint64)},
            "number 18,446,744,073,709,551,615; it must",
        ),
        (
            {"x": np.zeros((3, 2)), "y": np.array([0, np.nan, 1])},
            "y must hold class numbers 0, 1, …; it is float64",
        ),
        (
            {
                "x": np.zeros((3, 2)),
                "y": np.arange(3),
                "classes": 2,
            },
            "y holds the class number 2; classes is 2",
        ),
        (
            {
                "x": np.zeros((3, 2)),
                "y": np.arange(3),
                "classes": 10**9,
            },
            r"one integer from 1 to 100,000; it is array\(1000000000",
        ),
        (
            {
                "x": np.zeros((3, 2)),
                "y": np.arange(3),
                "classes": 3.0,
            },
            r"one integer from 1 to 100,000; it is array\(3\.",
        ),
        (
            {
                "x": np.zeros((3, 2)),
                "y": np.arange(3),
                "classes": [3],
            },
            r"one integer from 1 to 100,000; it is array\(\[3",
        ),
    ],
)
def test_own_files_are_checked(tmp_path, arrays, told):
    with pytest.raises(UserError, match=told):
        own(tmp_path, **arrays)


@pytest.mark.parametrize(
    ("arrays", "classes", "told"),
    [
        ({"y": [0, 1, 2]}, 3, None),
        (
            {"y": [1, 2, 3]},
            4,
            "no sample has the class 0 of 0 … 3; models get an output",
        ),
        (
            {"y": [0, 3, 9]},
            10,
            "no sample has the class 1, 2, 4, 5, 6 and 2 more of 0 … 9",
        ),
        ({"y": [0, 3, 9], "classes": 12}, 12, None),
    ],
)
def test_class_numbers_with_gaps_are_noted_unless_their_number_is_declared(
    tmp_path, arrays, classes, told
):
    data = own(tmp_path, x=np.zeros((3, 2)), **arrays)
    assert data.classes == classes
    assert (
        (told in data.notes[0] and str(tmp_path / "own.npz") in data.notes[0])
        if told
        else data.notes == ()
    )


def test_an_array_that_grows_beyond_its_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "UNPACKED", 1000)
    np.savez_compressed(
        tmp_path / "own.npz",
        x=np.zeros((30_000, 10), np.uint8),
        y=np.zeros(30_000, np.uint8),
    )
    with pytest.raises(
        UserError,
        match=r"'x\.npy' would grow from \d+ to 300,128 bytes, at most 100 times are allowed",
    ):
        datasets.load(config.Data(dataset="npz", file=str(tmp_path / "own.npz")))
    assert own(
        tmp_path, x=np.zeros((30_000, 10), np.uint8), y=np.zeros(30_000, np.uint8)
    ).shape == (10,)


def test_a_pipe_as_own_file(tmp_path):
    os.mkfifo(tmp_path / "own.npz")
    with pytest.raises(
        UserError, match=r"own\.npz: cannot be read as a \.npz .*\(not a regular file\)"
    ):
        datasets.load(config.Data(dataset="npz", file=str(tmp_path / "own.npz")))


def test_own_files_hold_no_pickles(tmp_path):
    with pytest.raises(
        UserError, match=r"cannot be read as a \.npz file without pickled objects"
    ):
        own(tmp_path, x=np.array([{}, {}]), y=np.zeros(2, int))
    (tmp_path / "own.npz").write_text("something else")
    with pytest.raises(UserError, match="cannot be read as a"):
        datasets.load(config.Data(dataset="npz", file=str(tmp_path / "own.npz")))


def test_keys_that_do_not_fit_the_data_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.dataset = 'npz' needs data\.file"):
        datasets.load(config.Data(dataset="npz"))
    with pytest.raises(
        UserError,
        match=r"'digits' does not read data\.file = 'x'; csv, huggingface, image-folder, leaf, npz, .* do",
    ):
        datasets.load(config.Data(file="x"))
    with pytest.raises(
        UserError, match=r"data\.augment = true: 'spiral' has no images"
    ):
        load("spiral", ".", augment=True)


def test_statistics_of_the_data_set_normalise_by_channel(tiny_images):
    data = load("tiny-imagenet", tiny_images.parent, normalise="statistics")
    expected = (
        data.x / 255 - torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    ) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    torch.testing.assert_close(data.normalise(data.x), expected)


def test_a_csv_file_is_told_what_it_is_and_what_reads_it(tmp_path):
    file = tmp_path / "it's mine.csv"
    file.write_text("a,b,class\n0.5,1,0\n2,3.5,1\n4,5,1\n")
    with pytest.raises(
        UserError, match=r"mine.csv: is a CSV file, which data.dataset = 'csv' reads"
    ) as told:
        datasets.load(config.Data(dataset="npz", file=str(file)))
    assert "\n" not in str(told.value)
    keys = {
        "dataset": "csv",
        "file": str(file),
        "options": {"label": "class"},
    }
    data = datasets.load(config.Data(**keys))
    assert data.x.tolist() == [[0.5, 1], [2, 3.5], [4, 5]]
    assert data.y.tolist() == [0, 1, 1]
