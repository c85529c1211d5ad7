"""Windows of sensors by subject: heterogeneity.md D7 and D8, in files written by NumPy."""

import numpy as np
import pytest
from refusals import expect_refusal
from user_data import load, refusal

from hpcfl.data import partition
from hpcfl.data.partitions.by_client import plugin as by_client
from hpcfl.data.sources import sensors


def test_windows_are_split_in_time():
    """Of eight windows of subject 0 and class 0 six train, the next is left out, and
    the last tests. Of four windows of class 1 three train and none can test.
    """
    subjects = np.array([0] * 12)
    classes = np.array([0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0])
    train, test = sensors.split_in_time(subjects, classes)
    assert train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8] and test.tolist() == [11]


@pytest.fixture
def har(tmp_path, monkeypatch):
    """Write sixteen windows of subjects 1 and 2 in train/ and eight of subject 3 in
    test/, with the activities 1 (first half) and 6, and return the signals [24, 9,
    128].
    """
    monkeypatch.setattr(sensors, "HAR_PARTS", {"train": 16, "test": 8})
    signals = np.random.default_rng(0).random((24, 9, 128)).astype(np.float32)
    folder = tmp_path / "UCI HAR Dataset"
    subjects = {"train": [1] * 8 + [2] * 8, "test": [3] * 8}
    spans = {"train": slice(0, 16), "test": slice(16, 24)}
    for part, span in spans.items():
        (folder / part / "Inertial Signals").mkdir(parents=True)
        for number, channel in enumerate(sensors.HAR_CHANNELS):
            path = folder / part / "Inertial Signals" / f"{channel}_{part}.txt"
            np.savetxt(path, signals[span, number], fmt="  %.9e")
        activities = ([1] * 4 + [6] * 4) * (len(subjects[part]) // 8)
        np.savetxt(folder / part / f"y_{part}.txt", activities, fmt="%d")
        np.savetxt(folder / part / f"subject_{part}.txt", subjects[part], fmt="%d")
    return signals


def test_subjects_are_clients(tmp_path, har):
    data = load("uci-har", tmp_path)
    assert data.shape == (9, 1, 128) and data.classes == 6
    # 3 of 4 windows of each subject and activity; the fourth is left out
    assert len(data.y) == 18 and data.official_test == 0
    kept = [number for number in range(24) if number % 4 != 3]
    assert np.array_equal(data.x[:, :, 0].numpy(), har[kept])
    assert data.normalise(data.x).equal(data.x)
    held = data.owners.list_held(0)
    assert [client.name for client in held[:3]] == ["1", "2", "3"] and len(held) == 30
    assert data.y[held[1].train].tolist() == [0, 0, 0, 5, 5, 5]


def test_the_official_split_keeps_subjects_apart(tmp_path, har):
    data = load("uci-har", tmp_path, split="official")
    assert data.official_test == 8 and len(data.y) == 24
    with expect_refusal(r"'uci-har': client '\d+' has \d+ .* 0 "):
        partition.make(by_client(clients=30), data)


def test_pfllibs_layout_mixes_the_channels(tmp_path, har):
    """The layout is that of a reshape of [128, 9] to [9, 1, 128]."""
    data = load("uci-har", tmp_path, split="official", layout="pfllib")
    first = har[0].T.reshape(9, 1, 128)
    assert np.array_equal(data.x[0].numpy(), first)
    assert data.x[0, 0, 0, :9].tolist() == har[0, :, 0].tolist()


SIGNAL = "test/Inertial Signals/body_acc_x_test.txt"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train/y_train.txt", "1\n" * 15, " 16 lines "),
        ("train/y_train.txt", "7\n" * 16, " 16 lines "),
        ("test/subject_test.txt", "1.5\n" * 8, " 8 lines "),
        ("test/y_test.txt", "a\n", ""),
        (SIGNAL, "1 2\n", "1 lines of 2 "),
        (SIGNAL, "1 2\n1\n", ""),
        ("train/y_train.txt", None, "hpcfl datasets uci-har "),
    ],
)
def test_files_of_har_that_are_not_whole_are_named(tmp_path, har, file, content, words):
    path = tmp_path / "UCI HAR Dataset" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    line = refusal("uci-har", tmp_path)
    assert line.startswith(f"{path}: ") and words in line


def recording(path, activities, scale=1.0):
    """Write a file of PAMAP2 with these activities, one per step. A signal is the
    number of its column, times ``scale`` and (step + 1), except one missing value.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = np.outer(np.arange(1, len(activities) + 1), np.arange(54.0)) * scale
    lines[:, 1] = activities
    lines[3, 4] = np.nan
    np.savetxt(path, lines, fmt="%.6g")


@pytest.fixture
def pamap2_files(tmp_path, monkeypatch):
    """Write the files of subject 101, who lies for five windows and jumps rope for one,
    with a second file of one window, and of subject 102, who walks for five.
    """
    monkeypatch.setattr(sensors, "PAMAP_SUBJECTS", range(101, 103))
    monkeypatch.setattr(sensors, "PAMAP_OPTIONAL", (101,))
    folder = tmp_path / "PAMAP2_Dataset"
    lying, jumping, walking = 1, 24, 4
    recording(
        folder / "Protocol/subject101.dat", [lying] * 256 * 3 + [jumping] * 256, scale=2
    )
    recording(folder / "Optional/subject101.dat", [lying] * 256)
    recording(folder / "Protocol/subject102.dat", [walking] * 256 * 3 + [0] * 256)
    return folder


def test_windows_have_the_activity_that_fills_them(tmp_path, pamap2_files):
    """Of subject 101's 7 windows in the first file, those at 0 … 512 are lying, the
    window at 640 is half and half, and that at 768 is jumping. With the second file
    there are 6 windows of lying, of which 4 train, the fifth is left out, and the last
    tests; one of jumping is too few to train. Subject 102 has 5 of walking: 3 train and
    one tests.
    """
    data = load("pamap2", tmp_path)
    assert data.shape == (9, 3, 256) and data.classes == 12
    assert data.y.tolist() == [1] * 4 + [4] * 3 + [1] + [4]
    assert data.official_test == 2
    held = data.owners.list_held(2)
    assert [client.name for client in held] == ["101", "102"]
    assert [client.train.tolist() for client in held] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [client.test.tolist() for client in held] == [[7], [8]]


def test_signals_are_scaled_by_training_windows(tmp_path, pamap2_files):
    """A signal grows with the step, and the scale cancels. The last training window of
    subject 102 begins at step 256, so its maximum is 512 times the column.
    """
    data = load("pamap2", tmp_path)
    last = data.x[6].numpy()
    expected = np.broadcast_to(np.arange(257, 513) / 512, (9, 3, 256))
    np.testing.assert_allclose(last, expected, rtol=1e-5)
    assert data.x[4, 0, 0, 3] == 0  # a missing value
    assert (data.x[8] > 1).any()  # a test window above the range of training


def test_channels_are_those_of_pfllib():
    hand = [4, 5, 6, *range(10, 16)]
    chest = [column + 17 for column in hand]
    ankle = [column + 34 for column in hand]
    assert hand + chest + ankle == sensors.PAMAP_SIGNALS


def test_pfllibs_label_of_mixed_windows_is_the_least(tmp_path, pamap2_files):
    """The window that is half lying and half jumping is lying; subject 102's window
    that is half walking has no activity.
    """
    data = load("pamap2", tmp_path, label="pfllib")
    assert data.y.tolist() == [1] * 5 + [4] * 3 + [1] + [4]


def test_overlaps_of_training_and_test_windows_are_noted(tmp_path, pamap2_files):
    """Subject 102 walks for 768 steps and then runs for 640. PFLlib's label of the window
    at 640 is walking; it is the sixth and tests. The window at 768 trains.
    """
    path = pamap2_files / "Protocol/subject102.dat"
    recording(path, [4] * 256 * 3 + [5] * 128 * 5)
    [note] = load("pamap2", tmp_path, label="pfllib").notes
    assert "'pfllib': 1 of 2 " in note
    assert load("pamap2", tmp_path).notes == ()


def test_files_of_pamap2_that_are_not_whole_are_named(tmp_path, pamap2_files):
    recording(pamap2_files / "Protocol/subject102.dat", [0] * 256)
    assert "subject 102 " in refusal("pamap2", tmp_path)
    path = pamap2_files / "Optional/subject101.dat"
    path.write_text("1 2 3\n")
    assert f"{path}: 3 " in refusal("pamap2", tmp_path)
