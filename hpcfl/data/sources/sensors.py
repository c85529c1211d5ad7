"""Sensor windows by subject in text files: UCI HAR and PAMAP2."""

import io
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hpcfl.data.datasets import AS_THEY_ARE, Dataset, Owners
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

MOST_BYTES = 1 << 30  # limit for a text file
SHARE = 0.75  # training share of a subject's windows of a class, as in PFLlib


def read_numbers(name: str, path: Path) -> np.ndarray:
    """Return the numbers in a text file, float32 [lines, columns]; NaN is allowed.

    Args:
        name: name of the data set, for messages.
        path: the file.

    Raises:
        UserError: The file cannot be read.
    """
    advice = f"hpcfl datasets {name} lists the files and their source"
    with untrusted_files.refuse_unreadable(
        path, "lines with equally many numbers", advice
    ):
        content = untrusted_files.read_user_file(path, MOST_BYTES)
        return np.loadtxt(io.BytesIO(content), dtype=np.float32, ndmin=2)


def split_in_time(
    subjects: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Split each subject's windows of each class: first windows for training, last for
    testing.

    Neighbouring windows overlap by half, so the window between the two parts is
    dropped.

    Args:
        subjects: subject of each window, [windows] in the order of time.
        classes: class of each window, [windows].

    Returns:
        Positions of training and test windows, int64, ascending.
    """
    train = []
    test = []
    for subject in np.unique(subjects):
        for number in np.unique(classes):
            windows = np.flatnonzero((subjects == subject) & (classes == number))
            kept = int(SHARE * len(windows))
            train.append(windows[:kept])
            test.append(windows[kept + 1 :])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


HAR_FOLDER = "UCI HAR Dataset"
HAR_PARTS = {"train": 7352, "test": 2947}
HAR_CHANNELS = [
    f"{signal}_{axis}"
    for signal in ("body_acc", "body_gyro", "total_acc")
    for axis in "xyz"
]
HAR_STEPS, HAR_ACTIVITIES, HAR_SUBJECTS = 128, 6, 30


class UciHar(Source):
    """UCI HAR (Anguita et al. 2013): 10,299 windows 9×1×128 of a phone's motion, 6
    activities, 30 subjects, in text files.

    The channels are body acceleration, rotation and total acceleration, each by x, y
    and z, with 128 steps at 50 Hz. With ``partition.scheme = "by-client"`` each subject
    is a client (heterogeneity.md D7).

    By default the last quarter of a subject's windows of each activity is for testing.
    The publishers' split (``split = "official"``) separates subjects, so clients have
    only training or only test windows. PFLlib splits at random, which puts overlapping
    windows on both sides. It also reshapes windows [128, 9] to [9, 1, 128], which mixes
    the channels: ``layout = "pfllib"``.
    """

    licence = "CC BY 4.0"
    home = "https://archive.ics.uci.edu/dataset/240"

    @property
    def looked_for(self) -> list[str]:
        files = []
        for part in HAR_PARTS:
            files += [
                f"{HAR_FOLDER}/{_name_signal(part, channel)}"
                for channel in HAR_CHANNELS
            ]
            files += [
                f"{HAR_FOLDER}/{part}/{kind}_{part}.txt" for kind in ("y", "subject")
            ]
        return files

    def read(
        self,
        name: str,
        root: Path,
        *,
        split: Annotated[
            Literal["in-time", "official"],
            Field(
                description="in-time: test on the last quarter of each subject's windows; "
                "official: the publishers' split by subjects"
            ),
        ] = "in-time",
        layout: Annotated[
            Literal["channels", "pfllib"],
            Field(description="layout of a window; pfllib: channels are mixed"),
        ] = "channels",
    ) -> Dataset:
        x = np.concatenate(
            [_read_har_signals(name, root / HAR_FOLDER, part) for part in HAR_PARTS]
        )
        activities = _read_har_numbers(name, root / HAR_FOLDER, "y", HAR_ACTIVITIES)
        subjects = _read_har_numbers(name, root / HAR_FOLDER, "subject", HAR_SUBJECTS)
        if layout == "pfllib":
            x = np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(x.shape)
        order = np.arange(len(x))
        tested = HAR_PARTS["test"]
        if split == "in-time":
            train, test = split_in_time(subjects, activities)
            order = np.concatenate([train, test])
            tested = len(test)
        names = tuple(str(number) for number in range(1, HAR_SUBJECTS + 1))
        return Dataset.from_arrays(
            name,
            x[order][:, :, None],
            activities[order],
            HAR_ACTIVITIES,
            official_test=tested,
            **AS_THEY_ARE,
            owners=Owners(names, subjects[order]),
        )


def _name_signal(part: str, channel: str) -> str:
    return f"{part}/Inertial Signals/{channel}_{part}.txt"


def _read_har_signals(name: str, folder: Path, part: str) -> np.ndarray:
    """Return the windows of a part, float32 [windows, 9, 128]. Raises UserError."""
    signals = []
    for channel in HAR_CHANNELS:
        path = folder / _name_signal(part, channel)
        signal = read_numbers(name, path)
        if signal.shape != (HAR_PARTS[part], HAR_STEPS):
            raise UserError(
                f"{path}: {signal.shape[0]:,} lines of {signal.shape[1]:,} numbers; it must "
                f"have {HAR_PARTS[part]:,} lines of {HAR_STEPS} numbers"
            )
        signals.append(signal)
    return np.stack(signals, axis=1)


def _read_har_numbers(name: str, folder: Path, kind: str, most: int) -> np.ndarray:
    """Return the activity or subject of each window, from 0, int64 [windows].

    Raises UserError.
    """
    numbers = []
    for part, windows in HAR_PARTS.items():
        path = folder / part / f"{kind}_{part}.txt"
        column = read_numbers(name, path)
        allowed = np.isin(column, np.arange(1, most + 1)).all()
        if column.shape != (windows, 1) or not allowed:
            raise UserError(
                f"{path}: must have {windows:,} lines with a number from 1 to {most} each"
            )
        numbers.append(column[:, 0].astype(np.int64) - 1)
    return np.concatenate(numbers)


PAMAP_FOLDER = "PAMAP2_Dataset"
PAMAP_SUBJECTS = range(101, 110)
PAMAP_OPTIONAL = (101, 105, 106, 108, 109)  # subjects with a second file
PAMAP_COLUMNS, PAMAP_ACTIVITY = 54, 1  # columns of a line, column of the activity
# First column of each sensor's acceleration of ±16 g. Rotation and magnetic field
# follow six columns later, after the acceleration of ±6 g.
PAMAP_SENSORS = (4, 21, 38)
PAMAP_SIGNALS = [
    first + offset
    for first in PAMAP_SENSORS
    for offset in (0, 1, 2, 6, 7, 8, 9, 10, 11)
]
PAMAP_CHANNELS = 9
PAMAP_STEPS, PAMAP_STRIDE = 256, 128
# The activity of each class, as in PFLlib; windows of other activities are dropped.
PAMAP_CLASSES = [24, 1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17]
PAMAP_MAJORITY = 0.8


class Pamap2(Source):
    """PAMAP2 (Reiss & Stricker 2012): windows 9×3×256 of three motion sensors on hand,
    chest and ankle, 12 activities, 9 subjects, in text files.

    The channels are acceleration (±16 g), rotation and magnetic field, each by x, y and
    z, with 256 steps at 100 Hz and a window every 128 steps. With ``partition.scheme =
    "by-client"`` each subject is a client (heterogeneity.md D8). Missing values are 0.
    Each of a subject's signals is divided by its largest magnitude in the training
    windows.

    The class of a window is the activity of at least 80 % of its steps; windows without
    one are dropped. The last quarter of a subject's windows of each activity is for
    testing. With ``label = "pfllib"`` the class is the smallest activity number in the
    window, as in PFLlib; windows with 0 (no activity) are dropped. A test window may
    then overlap with a training window of another activity; a note counts them.
    """

    licence = "CC BY 4.0"
    home = "https://archive.ics.uci.edu/dataset/231"

    @property
    def looked_for(self) -> list[str]:
        files = [_name_file("Protocol", subject) for subject in PAMAP_SUBJECTS]
        files += [_name_file("Optional", subject) for subject in PAMAP_OPTIONAL]
        return [f"{PAMAP_FOLDER}/{file}" for file in files]

    def read(
        self,
        name: str,
        root: Path,
        *,
        label: Annotated[
            Literal["majority", "pfllib"],
            Field(
                description="activity of a window: of 80 % of its steps, or smallest number"
            ),
        ] = "majority",
    ) -> Dataset:
        # (windows, classes, subject of each window) by subject
        trained: list[tuple[np.ndarray, ...]] = []
        tested: list[tuple[np.ndarray, ...]] = []
        overlaps = 0
        for number, subject in enumerate(PAMAP_SUBJECTS):
            x, y, begins = _read_windows(name, root / PAMAP_FOLDER, subject, label)
            split = split_in_time(np.zeros_like(y), y)
            overlaps += _count_overlaps(begins, *split)
            if not len(split[0]):
                raise UserError(
                    f"{root / PAMAP_FOLDER}: subject {subject} has no training window"
                )
            largest = np.abs(x[split[0]]).max(axis=(0, 3), keepdims=True)
            x /= np.where(largest > 0, largest, 1)
            subjects = np.full(len(y), number)
            for part, windows in zip((trained, tested), split, strict=True):
                part.append((x[windows], y[windows], subjects[windows]))
        columns = zip(*trained, *tested, strict=True)
        samples, classes, of = map(np.concatenate, columns)
        official_test = sum(len(y) for _, y, _ in tested)
        notes = []
        if overlaps:
            notes.append(
                f"data.label = '{label}': {overlaps:,} of {official_test:,} test windows overlap "
                "by half with a training window of another activity; 'majority' has none"
            )
        return Dataset.from_arrays(
            name,
            samples,
            classes,
            len(PAMAP_CLASSES),
            official_test=official_test,
            **AS_THEY_ARE,
            owners=Owners(tuple(map(str, PAMAP_SUBJECTS)), of),
            notes=tuple(notes),
        )


def _name_file(part: str, subject: int) -> str:
    return f"{part}/subject{subject}.dat"


def _read_windows(
    name: str, folder: Path, subject: int, label: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a subject's windows, float32 [windows, 9, 3, 256], and their classes and
    first steps, int64 [windows] each, in the order of time.

    Windows without an activity of PAMAP_CLASSES are dropped. Windows do not span two
    files. Raises UserError.
    """
    parts = ["Protocol", "Optional"] if subject in PAMAP_OPTIONAL else ["Protocol"]
    windows = []
    classes = []
    begins = []
    earlier = 0  # steps of earlier files
    for part in parts:
        path = folder / _name_file(part, subject)
        lines = read_numbers(name, path)
        if lines.shape[1] != PAMAP_COLUMNS:
            raise UserError(
                f"{path}: {lines.shape[1]} numbers per line, must be {PAMAP_COLUMNS}"
            )
        signals = np.nan_to_num(lines[:, PAMAP_SIGNALS], nan=0.0)
        for first in range(0, len(lines) - PAMAP_STEPS + 1, PAMAP_STRIDE):
            steps = slice(first, first + PAMAP_STEPS)
            activity = _find_activity(lines[steps, PAMAP_ACTIVITY], label)
            if activity in PAMAP_CLASSES:
                window = signals[steps].reshape(
                    PAMAP_STEPS, len(PAMAP_SENSORS), PAMAP_CHANNELS
                )
                windows.append(window.transpose(2, 1, 0))
                classes.append(PAMAP_CLASSES.index(activity))
                begins.append(earlier + first)
        earlier += len(lines)
    if not windows:
        raise UserError(f"{folder}: subject {subject} has no window of an activity")
    return np.stack(windows), np.array(classes, np.int64), np.array(begins)


def _count_overlaps(begins: np.ndarray, train: np.ndarray, test: np.ndarray) -> int:
    """Return the number of test windows that share steps with a training window.

    Args:
        begins: first step of each window.
        train, test: positions of the training and test windows.
    """
    distances = np.abs(begins[test][:, None] - begins[train])
    return int((distances < PAMAP_STEPS).any(axis=1).sum())


def _find_activity(steps: np.ndarray, label: str) -> int | None:
    """Return the activity of a window; None without a majority.

    Args:
        steps: activity number of each step.
        label: key ``data.label``.
    """
    numbers, counts = np.unique(steps, return_counts=True)
    if label == "pfllib":
        return int(numbers[0])
    most = int(counts.argmax())
    if counts[most] < PAMAP_MAJORITY * len(steps):
        return None
    return int(numbers[most])


plugins = {"pamap2": Pamap2(), "uci-har": UciHar()}
