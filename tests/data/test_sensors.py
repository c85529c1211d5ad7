"""Windows of sensors by subject: heterogeneity.md D7 and D8, in files as NumPy writes
them.
"""

import numpy as np
import pytest

from hpcfl.data import datasets, partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import _windows, uci_har
from hpcfl.errors import UserError
from hpcfl.experiment import config


def load(name, root, **options):
    return datasets.load(config.Data(dataset=name, root=str(root), options=options))


def test_d7_windows_are_split_in_time():
    """Of eight windows of subject 0 and class 0 six train, the next is left out, the
    last tests; of four of class 1 three train and none can test.
    """
    subjects = np.array([0] * 12)
    classes = np.array([0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0])
    train, test = _windows.split_in_time(subjects, classes)
    assert train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8] and test.tolist() == [11]


@pytest.fixture
def har(tmp_path, monkeypatch):
    """Sixteen windows of subjects 1 and 2 in train/, eight of subject 3 in test/, all
    of the activities 1 (first half) and 6; returns the signals [24, 9, 128].
    """
    monkeypatch.setattr(uci_har, "PARTS", {"train": 16, "test": 8})
    signals = np.random.default_rng(0).random((24, 9, 128)).astype(np.float32)
    folder = tmp_path / "UCI HAR Dataset"
    subjects = {"train": [1] * 8 + [2] * 8, "test": [3] * 8}
    spans = {"train": slice(0, 16), "test": slice(16, 24)}
    for part, span in spans.items():
        (folder / part / "Inertial Signals").mkdir(parents=True)
        for number, channel in enumerate(uci_har.CHANNELS):
            path = folder / part / "Inertial Signals" / f"{channel}_{part}.txt"
            np.savetxt(path, signals[span, number], fmt="  %.9e")
        activities = [1] * 4 + [6] * 4
        np.savetxt(
            folder / part / f"y_{part}.txt",
            activities * (len(subjects[part]) // 8),
            fmt="%d",
        )
        np.savetxt(folder / part / f"subject_{part}.txt", subjects[part], fmt="%d")
    return signals


def test_d7_subjects_are_clients(tmp_path, har):
    data = load("uci-har", tmp_path)
    assert data.shape == (9, 1, 128) and data.classes == 6
    # 3 of 4 windows of each subject and activity; the fourth is left out
    assert len(data.y) == 18 and data.official_test == 0
    kept = [number for number in range(24) if number % 4 != 3]
    assert np.array_equal(data.x[:, :, 0].numpy(), har[kept])
    assert data.normalise(data.x).equal(data.x)
    held = data.owners.held(0)
    assert [client.name for client in held[:3]] == ["1", "2", "3"] and len(held) == 30
    assert data.y[held[1].train].tolist() == [0, 0, 0, 5, 5, 5]


def test_d7_the_official_split_keeps_subjects_apart(tmp_path, har):
    data = load("uci-har", tmp_path, split="official")
    assert data.official_test == 8 and len(data.y) == 24
    with pytest.raises(UserError, match=r"client '\d+' has \d+ samples to train and"):
        partition.make(by_client(clients=30), data)


def test_d7_pfllibs_layout_mixes_the_channels(tmp_path, har):
    """As a reshape of [128, 9] to [9, 1, 128] lays them out."""
    data = load("uci-har", tmp_path, split="official", layout="pfllib")
    first = har[0].T.reshape(9, 1, 128)
    assert np.array_equal(data.x[0].numpy(), first)
    assert data.x[0, 0, 0, :9].tolist() == har[0, :, 0].tolist()


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        (
            "train/y_train.txt",
            "1\n" * 15,
            "must have 16 lines with a number from 1 to 6",
        ),
        (
            "train/y_train.txt",
            "7\n" * 16,
            "must have 16 lines with a number from 1 to 6",
        ),
        (
            "test/subject_test.txt",
            "1.5\n" * 8,
            "must have 8 lines with a number from 1",
        ),
        ("test/y_test.txt", "a\n", "cannot be read as lines of as many numbers each"),
        (
            "test/Inertial Signals/body_acc_x_test.txt",
            "1 2\n",
            "1 lines of 2 numbers; it must have 8 of 128",
        ),
        (
            "test/Inertial Signals/body_acc_x_test.txt",
            "1 2\n1\n",
            "cannot be read as lines of as many numbers each",
        ),
        ("train/y_train.txt", None, "no such file"),
    ],
)
def test_d7_files_that_are_not_whole_are_named(tmp_path, har, file, content, told):
    path = tmp_path / "UCI HAR Dataset" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=f"^{path}: .*{told}|^{path}: {told}") as caught:
        load("uci-har", tmp_path)
    assert "\n" not in str(caught.value)
