"""Folders in the format of PFLlib's scripts: heterogeneity.md D12."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from user_data import load, refusal

from hpcfl.data import partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import pfllib

X = np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2) / 4 - 1
Y = np.array([1, 0])
SIZES = "Size of samples for labels in clients"


def packed(pickled, header=None):
    """Return the .npz file of an object array without dimensions with this pickle."""
    array = io.BytesIO()
    header = header or {"descr": "|O", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(array, header)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", array.getvalue() + pickled)
    return file.getvalue()


def pickle_from(module):
    """Return a writer of a client's file whose pickle names this module of NumPy."""

    def write(path, samples):
        pickled = pickle.dumps(np.array(samples, dtype=object), protocol=3)
        own = np.zeros(0).__reduce__()[0].__module__
        assert own.encode() in pickled
        path.write_bytes(packed(pickled.replace(own.encode(), module.encode())))

    return write


def as_numpy(path, samples):
    """Return a client's file as PFLlib writes it with the installed NumPy."""
    with open(path, "wb") as file:
        np.savez_compressed(file, data=samples)


def folder(root, train, test, write=as_numpy, **keys):
    """Write a folder of PFLlib.

    train, test: (x, y) for each client. keys: entries of config.json.
    """
    for part, clients in {"train": train, "test": test}.items():
        (root / part).mkdir(parents=True)
        for number, (x, y) in enumerate(clients):
            write(root / part / f"{number}.npz", {"x": x, "y": y})
    if keys:
        (root / "config.json").write_text(json.dumps(keys))
    return root


def make_alike(tmp_path, clients, **keys):
    """Write a folder of clients with the same samples for training and testing."""
    samples = [(X, Y)] * clients
    return folder(tmp_path / "MNIST", samples, samples, **keys)


@pytest.mark.parametrize(
    "write",
    [
        as_numpy,
        pickle_from("numpy.core.multiarray"),
        pickle_from("numpy._core.multiarray"),
    ],
)
def test_pfllibs_split_is_used_unchanged(tmp_path, write):
    """With twelve clients the order by name, 10 before 2, differs."""
    train = [(X + client, Y) for client in range(12)]
    test = [(X[:1] - client, Y[:1]) for client in range(12)]
    sizes = [[[0, 1], [1, 2]]] * 12
    root = folder(
        tmp_path / "MNIST",
        train,
        test,
        write,
        num_clients=12,
        num_classes=10,
        non_iid=True,
        partition="dir",
        alpha=0.1,
        **{SIZES: sizes},
    )
    data = load("pfllib", root)
    assert (data.name, data.classes, data.shape) == ("MNIST", 10, (1, 2, 2))
    assert data.official_test == 12 and len(data.y) == 36
    assert data.normalise(data.x).equal(data.x)  # PFLlib has normalised them
    split = partition.make(by_client(clients=12), data)
    assert split.names == [str(client) for client in range(12)]
    for client in range(12):
        assert data.x[split.train[client]].numpy().tolist() == (X + client).tolist()
        assert data.x[split.test[client]].numpy().tolist() == (X[:1] - client).tolist()
        assert data.y[split.train[client]].tolist() == [1, 0]
        assert data.y[split.test[client]].tolist() == [1]


TOKENS = np.array([[1, 2, 3], [80, 0, 7]])
TEXTS = np.array([([5, 6, 0], 3), ([7, 0, 0], 3)], dtype=object)  # [n, 2]
IMAGES = [np.eye(3, dtype=bool)[None], np.zeros((1, 3, 3), dtype=bool)]


@pytest.mark.parametrize(
    ("train", "test", "keys", "expected", "vocabulary"),
    [
        # Shakespeare's folder has no config.json
        (TOKENS, TOKENS[:1], {}, [[1, 2, 3], [80, 0, 7], [1, 2, 3]], 81),
        # AG News has lists of tokens with their lengths
        (
            TEXTS,
            [([9, 1, 1], 3)],
            {"num_clients": 1, "num_classes": 4},
            [[5, 6, 0], [7, 0, 0], [9, 1, 1]],
            10,
        ),
        # Omniglot has a list of arrays, and no sizes
        (
            IMAGES,
            IMAGES[:1],
            {"num_clients": 1, "num_classes": 50, SIZES: None},
            np.stack([*IMAGES, IMAGES[0]]).tolist(),
            None,
        ),
    ],
)
def test_each_format_of_samples_is_read(
    tmp_path, train, test, keys, expected, vocabulary
):
    root = folder(tmp_path / "s", [(train, [1, 0])], [(test, [1])], **keys)
    data = load("pfllib", root)
    assert data.normalise(data.x).tolist() == expected
    assert data.vocabulary == vocabulary
    assert data.y.tolist() == [1, 0, 1] and data.official_test == 1


@pytest.mark.parametrize("kind", [np.uint8, np.float64, np.int16])
def test_values_are_taken_as_they_are(tmp_path, kind):
    images = np.full((2, 1, 2, 2), 200).astype(kind)
    data = load(
        "pfllib", folder(tmp_path / "v", [(images, Y)], [(images, Y.astype(np.int32))])
    )
    assert (data.normalise(data.x) == 200).all() and data.vocabulary is None


def test_a_list_of_numpy_scalars_is_read(tmp_path):
    labels = [np.int64(1), np.int64(0)]
    for number, module in enumerate(
        ["numpy.core.multiarray", "numpy._core.multiarray"]
    ):
        root = folder(
            tmp_path / str(number), [(X, labels)], [(X, labels)], pickle_from(module)
        )
        assert load("pfllib", root).y.tolist() == [1, 0, 1, 0]


class Call:
    """A pickle that calls ``os.system`` when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch made",)


def dumped(value):
    return pickle.dumps(value, protocol=3)


def whole(samples):
    return dumped(np.array(samples, dtype=object))


HUGE = (
    b"\x80\x03cnumpy\nndarray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85X\x02\x00\x00\x00u1"
    b"q\x00\x86R."
)  # numpy.ndarray((1 << 40,), "u1"), which is never filled


FLOATS = {"descr": "<f4", "fortran_order": False, "shape": (3,)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (packed(whole({"x": Call(), "y": Y})), "it names the object posix.system"),
        (packed(dumped({"x": X, "y": Y})), ".npz: "),
        (packed(whole([1, 2])), ".npz: "),
        (packed(whole({"x": X})), "'x' and 'y'"),
        (packed(whole({"x": X.astype("U8"), "y": Y})), "<U8"),
        (packed(whole({"x": X, "y": np.array([1, None])})), "object"),
        (packed(whole({"x": [([1, 2], 2), ([1], 1)], "y": Y})), "inhomogeneous"),
        (packed(whole({"x": [([1, 2], 2), ([1, 0], 3)], "y": Y})), ".npz: "),
        (packed(whole({"x": [("ab", 2), ("cd", 2)], "y": Y})), ".npz: "),
        (packed(whole({"x": [(["a"], 1), (["b"], 1)], "y": Y})), ".npz: "),
        (packed(whole({"x": [([0] * 9, 1)] * 99, "y": Y})), ".npz: "),
        (packed(whole({"x": [np.zeros(99)] * 99, "y": Y})), ".npz: "),
        (packed(HUGE), ".npz: "),
        (packed(whole({"x": X[:1], "y": Y})), "(1, 1, 2, 2) and y (2,)"),
        (packed(whole({"x": X, "y": Y / 2})), "it is float64"),
        (packed(b""), "Ran out of input"),
        (packed(b"", FLOATS), "float32 [3]"),
        (b"PK\x03\x04", ".npz: "),
    ],
    # A compressed file contains the time, and all processes must name a test equally.
    ids=lambda value: "file" if isinstance(value, bytes) else None,
)  # fmt: skip
def test_invalid_files_are_refused_without_running_their_code(
    tmp_path, monkeypatch, content, words
):
    monkeypatch.chdir(tmp_path)
    root = make_alike(tmp_path, 2)
    path = root / "test" / "1.npz"
    path.write_bytes(content)
    line = refusal("pfllib", root)
    assert line.startswith(f"{path}: ") and words in line
    assert not (tmp_path / "made").exists()


def test_a_broadcast_array_of_excessive_size_is_refused(tmp_path):
    """A view of one number with a declared size of ten million."""
    wide = np.lib.stride_tricks.as_strided(np.zeros(1), (5000, 2000), (0, 0))
    with pytest.raises(ValueError, match=r"80,000,000 bytes, .* 99"):
        pfllib.convert_numbers(wide, most=99)


def test_a_file_holds_one_array(tmp_path):
    root = make_alike(tmp_path, 1)
    np.savez(root / "train" / "0.npz", x=X, y=Y)
    assert "data.npy" in refusal("pfllib", root)


@pytest.mark.parametrize("removed", ["train/1.npz", "test/2.npz"])
@pytest.mark.parametrize("keys", [{}, {"num_clients": 3, "num_classes": 2}])
def test_a_missing_client_is_named(tmp_path, removed, keys):
    root = make_alike(tmp_path, 3, **keys)
    (root / removed).unlink()
    assert f"{root / removed}: " in refusal("pfllib", root)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_clients": 1}, "num_clients = 1, "),
        ({"num_clients": 3}, "train/2.npz: "),
        ({"num_clients": "many"}, "config.json: "),
        ({"num_clients": 9**9}, "387,420,489"),
        ({"num_classes": 1}, "1; it must be below 1"),
        ({SIZES: [[[0, 2], [1, 2]], [[0, 3], [1, 1]]]}, "client 1 has 4 samples"),
        ({SIZES: [[[0, 2], [1, 2]]]}, "sizes for 1 clients "),
        ({SIZES: [[[0, 1], [0, 1], [1, 2]], [[0, 2], [1, 2]]]}, "client 0 has 4 samples"),
    ],
)  # fmt: skip
def test_a_contradictory_config_is_refused(tmp_path, keys, words):
    keys = {"num_clients": 2, "num_classes": 2, **keys}
    root = make_alike(tmp_path, 2, **keys)
    assert words in refusal("pfllib", root)


def test_the_folder_of_an_older_generator_has_the_classes_of_its_labels(tmp_path):
    """PFLlib's MNIST folder has no ``num_classes``."""
    root = make_alike(tmp_path, 2, num_clients=2)
    data = load("pfllib", root)
    assert data.classes == len(set(Y.tolist())) and not data.notes


def test_more_classes_than_there_are_samples_of_are_noted(tmp_path):
    keys = {"num_clients": 2, "num_classes": 3}
    root = make_alike(tmp_path, 2, **keys)
    data = load("pfllib", root)
    assert data.classes == 3
    assert "num_classes = 3, " in data.notes[-1]


@pytest.mark.parametrize("name", ["01.npz", "0 (1).npz", "x.npz"])
def test_a_file_of_no_client_is_refused(tmp_path, name):
    root = make_alike(tmp_path, 2)
    as_numpy(root / "train" / name, {"x": X, "y": Y})
    assert "K.npz" in refusal("pfllib", root)


def test_files_that_differ_are_named(tmp_path):
    root = folder(tmp_path / "shape", [(X, Y)] * 2, [(X, Y), (X[..., :1], Y)])
    assert "test/1.npz: x is" in refusal("pfllib", root)
    wrong = X.astype(float)
    wrong[1, 0] = np.inf
    root = folder(tmp_path / "values", [(X.astype(float), Y)] * 2, [(wrong, Y)] * 2)
    assert "test/0.npz: x[1, 0, 0, 0] is inf" in refusal("pfllib", root)


def test_a_folder_without_pfllibs_files_is_refused(tmp_path):
    assert "train/K.npz" in refusal("pfllib", tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "config.json: " in refusal("pfllib", tmp_path)
