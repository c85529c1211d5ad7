import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hpcfl.data import datasets
from hpcfl.data.sources import cifar, mnist
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.report import configuration


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + b"".join(n.to_bytes(4, "big") for n in array.shape)
        + array.tobytes()
    )


def md5(contents):
    return {
        file: hashlib.md5(content).hexdigest() for file, content in contents.items()
    }


def write(folder, contents):
    folder.mkdir(parents=True)
    for file, content in contents.items():
        (folder / file).write_bytes(content)


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """Five training and three test images 1×2×3 in MNIST's format under tmp_path;
    returns (images, labels).
    """
    images = np.arange(48, dtype=np.uint8).reshape(8, 2, 3)
    labels = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=np.uint8)
    parts = [images[:5], labels[:5], images[5:], labels[5:]]
    contents = dict(zip(mnist.plugins["mnist"].checksums, map(idx, parts), strict=True))
    write(tmp_path / "MNIST/raw", contents)
    source = mnist.IdxFiles("MNIST", "MNIST/raw", md5(contents))
    monkeypatch.setitem(mnist.plugins, "mnist", source)
    return images, labels


@pytest.fixture
def tiny_cifar(tmp_path, monkeypatch):
    """Two training batches and a test batch of two images each in CIFAR's format under
    tmp_path.
    """
    images = np.random.default_rng(0).integers(0, 256, (6, 3 * 32 * 32), dtype=np.uint8)
    files = ("data_batch_1", "data_batch_2", "test_batch")
    contents = {
        file: pickle.dumps(
            {"data": images[2 * i : 2 * i + 2], "labels": [i, 9]}, protocol=3
        )
        for i, file in enumerate(files)
    }
    write(tmp_path / "cifar", contents)
    source = cifar.PickledBatches(
        "CIFAR10",
        "cifar",
        md5(contents),
        labels="labels",
        classes=10,
        statistics=((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    )
    monkeypatch.setitem(cifar.plugins, "cifar-10", source)
    return images


def load(name, root):
    return datasets.load(config.Data(dataset=name, root=str(root)))


def test_digits_are_built_in(monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    digits = datasets.load(config.Data())
    assert digits.x.shape == (1797, 1, 8, 8) and digits.x.dtype == torch.uint8
    assert (
        digits.shape == (1, 8, 8) and digits.classes == 10 and digits.official_test == 0
    )
    assert digits.y.dtype == torch.int64 and digits.y.bincount().tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]
    values = digits.normalise(digits.x)
    assert values.dtype == torch.float32 and values.min() == -1 and values.max() == 1


def test_digits_are_those_that_scikit_learn_gives():
    digits, given = datasets.load(config.Data()), load_digits()
    assert np.array_equal(digits.x.squeeze(1).numpy(), given.images)
    assert np.array_equal(digits.y.numpy(), given.target)


def test_names_are_the_files():
    assert {"digits", "fashion-mnist", "npz-folders", "pfllib"} <= set(datasets.names())
    assert not any("_" in name or name == "base" for name in datasets.names())


@pytest.mark.parametrize("per_channel", [False, True])
def test_normalise_is_the_formula(per_channel):
    mean, std = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)) if per_channel else ((0.5,), (0.25,))
    x = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    data = datasets.Dataset(
        "x", x, torch.zeros(4, dtype=torch.int64), 2, mean=mean, std=std
    )
    expected = (x / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(
        -1, 1, 1
    )
    torch.testing.assert_close(data.normalise(x), expected)


def test_normalise_leaves_token_ids_alone():
    x = torch.tensor([[0, 7], [3, 1]])
    data = datasets.Dataset("x", x, torch.tensor([0, 1]), 2)
    assert data.normalise(x) is x


def test_mnist_is_train_then_test(tmp_path, tiny_mnist, monkeypatch):
    images, labels = tiny_mnist
    monkeypatch.setenv("HPCFL_DATA", str(tmp_path))
    data = datasets.load(config.Data(dataset="mnist"))
    assert data.x.shape == (8, 1, 2, 3) and data.official_test == 3
    assert (
        data.x[:, 0].tolist() == images.tolist() and data.y.tolist() == labels.tolist()
    )


def test_cifar_is_train_then_test(tmp_path, tiny_cifar):
    data = load("cifar-10", tmp_path)
    assert data.x.shape == (6, 3, 32, 32) and data.official_test == 2
    assert data.x.flatten(1).tolist() == tiny_cifar.tolist() and data.y.tolist() == [
        0,
        9,
        1,
        9,
        2,
        9,
    ]


class Call:
    """A pickle that calls ``os.mkdir`` when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"data": Call(), "labels": [1]}, "it asks for posix.mkdir"),
        ({"labels": [1]}, "'data'"),
        ([3], "list indices must be"),
        (
            {"data": np.zeros((2, 5), np.uint8), "labels": [1, 2]},
            "cannot reshape array of size 10",
        ),
        (b"", "Ran out of input"),
    ],
)
def test_batches_of_something_else_are_one_line_and_call_nothing(
    tmp_path, tiny_cifar, monkeypatch, batch, told
):
    monkeypatch.chdir(tmp_path)
    content = batch if batch == b"" else pickle.dumps(batch, protocol=3)
    (tmp_path / "cifar" / "data_batch_2").write_bytes(content)
    monkeypatch.setitem(
        cifar.plugins["cifar-10"].checksums,
        "data_batch_2",
        hashlib.md5(content).hexdigest(),
    )
    with pytest.raises(
        UserError, match=rf"data_batch_2: not a batch of cifar-10 \({told}"
    ) as caught:
        load("cifar-10", tmp_path)
    assert "\n" not in str(caught.value) and not (tmp_path / "made").exists()


def test_cifars_own_pickles_are_of_python_2(tmp_path, tiny_cifar, monkeypatch):
    """As numpy 1 wrote them: a module that has moved since, and bytes as strings."""
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00"
        + b"\xfe" * 3072
        + b"tbU\x06labels](K\x07eu."
    )
    (tmp_path / "cifar" / "test_batch").write_bytes(content)
    monkeypatch.setitem(
        cifar.plugins["cifar-10"].checksums,
        "test_batch",
        hashlib.md5(content).hexdigest(),
    )
    data = load("cifar-10", tmp_path)
    assert data.y[4:].tolist() == [7] and (data.x[4] == 254).all()


def test_a_pipe_as_data(tmp_path, tiny_mnist):
    path = tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(
        UserError, match=rf"^{path}: cannot be read \(not a regular file\)"
    ):
        load("mnist", tmp_path)


def cut(content):
    return content[:-1]


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("damage", [cut, flip])
def test_damaged_files_are_named(tmp_path, tiny_mnist, damage):
    path = tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        UserError,
        match=rf"^{path}: damaged.*hpcfl data download mnist --root {tmp_path}$",
    ):
        load("mnist", tmp_path)


def test_a_damaged_pickle_is_never_opened(tmp_path, tiny_cifar):
    bomb = b"cbuiltins\nexit\n(tR."
    (tmp_path / "cifar/test_batch").write_bytes(bomb)
    with pytest.raises(UserError, match="test_batch: damaged"):
        load("cifar-10", tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        UserError,
        match=r"MNIST/raw/train-images-idx3-ubyte: no such file; .*download fashion-mnist",
    ):
        load("fashion-mnist", tmp_path)


def test_a_missing_root_is_told(monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    with pytest.raises(UserError, match=r"set data\.root or \$HPCFL_DATA"):
        datasets.load(config.Data(dataset="cifar-100"))


def test_unknown_names_get_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar-10'"):
        datasets.load(config.Data(dataset="cifar10"))


class FakeArchive:
    """Stands for a class of torchvision.datasets; fetches ``contents`` where they are
    absent, as MNIST's does.
    """

    contents: dict[str, bytes] = {}  # noqa: RUF012 - set by the test
    error: Exception | None = None

    def __init__(self, root, download):
        assert download
        if self.error:
            raise self.error
        for file, content in self.contents.items():
            if not (root / "MNIST/raw" / file).exists():
                (root / "MNIST/raw" / file).write_bytes(content)


@pytest.fixture
def archive(tmp_path, tiny_mnist, monkeypatch):
    from hpcfl.data.vision import torchvision

    monkeypatch.setattr(torchvision.datasets, "MNIST", FakeArchive)
    folder = tmp_path / "MNIST/raw"
    monkeypatch.setattr(
        FakeArchive,
        "contents",
        {path.name: path.read_bytes() for path in folder.iterdir()},
    )
    return folder


@pytest.mark.slow
def test_download_replaces_what_is_missing_or_damaged(tmp_path, archive):
    damaged, missing = (
        archive / "train-labels-idx1-ubyte",
        archive / "t10k-images-idx3-ubyte",
    )
    damaged.write_bytes(flip(damaged.read_bytes()))
    missing.unlink()
    datasets.download("mnist", tmp_path)
    assert len(load("mnist", tmp_path).y) == 8


def test_download_checks_what_it_fetched(tmp_path, archive, monkeypatch):
    monkeypatch.setitem(
        FakeArchive.contents, "train-labels-idx1-ubyte", b"an error page"
    )
    (archive / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="train-labels-idx1-ubyte: damaged, 13 bytes"):
        datasets.download("mnist", tmp_path)


def test_no_network_is_one_line(tmp_path, archive, monkeypatch):
    monkeypatch.setattr(
        FakeArchive, "error", RuntimeError("Error downloading:\nTried a mirror\n")
    )
    with pytest.raises(
        UserError,
        match=r"mnist could not be downloaded to .*: Error downloading: Tried a mirror$",
    ):
        datasets.download("mnist", tmp_path)


def test_built_in_data_is_not_downloaded(tmp_path):
    with pytest.raises(UserError, match="'digits' is not downloaded: it is built in"):
        datasets.download("digits", tmp_path)


@pytest.mark.slow
def test_loading_does_not_import_torchvision():
    code = (
        "import sys; from hpcfl.experiment import config; from hpcfl.data import datasets; "
        "datasets.load(config.Data())"
    )
    subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'torchvision' not in sys.modules"],
        check=True,
    )


def test_a_part_of_the_samples_for_a_quick_try():
    """The spiral has 6 classes of 3,000 training and 100 test points: of 300 of them
    each class has 50, and of the test points a sixtieth, 10, of each class 1 or 2.
    """
    whole = datasets.load(config.Data(dataset="spiral"))
    part = datasets.load(config.Data(dataset="spiral", samples=300))
    assert (len(part.y), part.official_test, part.classes) == (310, 10, 6)
    assert np.bincount(part.y[:300]).tolist() == [50] * 6
    assert set(np.bincount(part.y[300:]).tolist()) == {1, 2}
    places = [torch.where((whole.x == x).all(dim=1))[0].item() for x in part.x]
    assert places == sorted(set(places)) and places[299] < 18_000 <= places[300]
    assert whole.y[places].equal(part.y)
    again = datasets.load(config.Data(dataset="spiral", samples=300))
    assert again.x.equal(part.x)
    assert part.notes == (
        "data.samples = 300: only these of 18,000 samples are used, and 10 of 600 test samples",
    )


def test_a_part_of_samples_without_an_official_split():
    part = datasets.load(config.Data(samples=200))
    assert (len(part.y), part.official_test) == (200, 0)
    assert part.notes == ("data.samples = 200: only these of 1,797 samples are used",)
    with pytest.raises(
        UserError, match=r"data.samples = 1797: 'digits' has 1797 train"
    ):
        datasets.load(config.Data(samples=1797))


def test_a_part_of_the_samples_is_another_run():
    table = {"method": {"name": "fedavg"}}
    whole = config.parse(table)
    part = config.parse({**table, "data": {"samples": 200}})
    assert whole.fingerprint() != part.fingerprint()
    with pytest.raises(
        UserError, match=r"each client has samples of its own; a smaller"
    ):
        config.parse(
            {
                **table,
                "data": {"samples": 9},
                "partition": {"scheme": "by-client"},
            }
        )


LETTERS = {
    "method": {"name": "fedavg"},
    "data": {"dataset": "emnist", "split": "letters"},
}


def test_keys_of_a_data_set_are_keys_of_its_section():
    letters = config.parse(LETTERS)
    resolved = letters.resolved()
    assert resolved["data"]["split"] == "letters" and "options" not in resolved["data"]
    assert config.parse(resolved).resolved() == resolved
    line = "# which of EMNIST's data sets (byclass | bymerge | balanced | letters |"
    assert line in configuration.toml(letters)
    table = {key: dict(section) for key, section in LETTERS.items()}
    config.choose(table, "data.dataset", "mnist")
    assert table["data"] == {"dataset": "mnist"}
    balanced = config.parse({**LETTERS, "data": {"dataset": "emnist"}})
    assert balanced.fingerprint() != letters.fingerprint()


def test_a_data_set_without_keys_has_the_sections_alone():
    resolved = config.parse({"method": {"name": "fedavg"}}).resolved()
    assert set(resolved["data"]) == set(config.Data.model_fields) - {"options"}


class Misread(Source):
    """It does not name its parameters as all do."""

    def read(self, called, place):
        raise AssertionError


misread = Misread()


def test_a_source_that_is_read_otherwise_is_told():
    table = {"method": {"name": "fedavg"}, "data": {"dataset": f"{__name__}:misread"}}
    with pytest.raises(
        UserError, match=r"read must be called as \(name, root, \*, own"
    ):
        config.parse(table)
