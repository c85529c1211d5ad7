"""PAMAP2 (Reiss & Stricker 2012): windows 9×3×256 of three motion sensors on hand, chest
and ankle, 12 activities, 9 subjects, in text files.

The channels are acceleration (±16 g), rotation and magnetic field, each by x, y and z,
256 steps at 100 Hz, a window every 128 steps. Subjects are the clients of
``partition.scheme = "by-client"`` (heterogeneity.md D8). Missing values are 0, and each
of a subject's signals is divided by the largest magnitude in its training windows.

A window has the activity that fills at least 80 % of it, and is left out where none does;
the last quarter of a subject's windows of each activity are for testing. With ``label =
"pfllib"`` it has the least activity number in it, as PFLlib's; windows with 0, no
activity, are then left out.
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from hpcfl.data.datasets import AS_THEY_ARE, Dataset, Owners
from hpcfl.data.sources import _windows
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError

FOLDER = "PAMAP2_Dataset"
SUBJECTS = range(101, 110)
OPTIONAL = (101, 105, 106, 108, 109)  # those with a second file
COLUMNS, ACTIVITY = 54, 1  # of a line, and the one with the activity
# The first column of each sensor's acceleration; rotation and magnetic field follow six
# columns later, after its acceleration of ±6 g.
SENSORS = (4, 21, 38)
SIGNALS = [
    first + offset for first in SENSORS for offset in (0, 1, 2, 6, 7, 8, 9, 10, 11)
]
CHANNELS = 9
STEPS, STRIDE = 256, 128
# PFLlib's class of each activity; others are left out.
CLASSES = {
    24: 0,
    1: 1,
    2: 2,
    3: 3,
    4: 4,
    5: 5,
    6: 6,
    7: 7,
    12: 8,
    13: 9,
    16: 10,
    17: 11,
}
MAJORITY = 0.8


class Pamap2(Source):
    licence = "CC BY 4.0"
    home = "https://archive.ics.uci.edu/dataset/231"

    @property
    def looked_for(self) -> list[str]:
        files = [_file("Protocol", subject) for subject in SUBJECTS]
        files += [_file("Optional", subject) for subject in OPTIONAL]
        return [f"{FOLDER}/{file}" for file in files]

    def read(
        self,
        name: str,
        root: Path,
        *,
        label: Annotated[
            Literal["majority", "pfllib"],
            Field(
                description="a window's activity: of 80 % of it, or the least number"
            ),
        ] = "majority",
    ) -> Dataset:
        # windows, classes and subjects of each subject
        trained: list[tuple[np.ndarray, ...]] = []
        tested: list[tuple[np.ndarray, ...]] = []
        for number, subject in enumerate(SUBJECTS):
            x, y = _windows_of(name, root / FOLDER, subject, label)
            split = _windows.split_in_time(np.zeros_like(y), y)
            if not len(split[0]):
                raise UserError(
                    f"{root / FOLDER}: subject {subject} has no window to train on"
                )
            largest = np.abs(x[split[0]]).max(axis=(0, 3), keepdims=True)
            x /= np.where(largest > 0, largest, 1)
            subjects = np.full(len(y), number)
            for part, windows in zip((trained, tested), split, strict=True):
                part.append((x[windows], y[windows], subjects[windows]))
        columns = zip(*trained, *tested, strict=True)
        samples, classes, of = map(np.concatenate, columns)
        return Dataset(
            name,
            torch.from_numpy(samples),
            torch.from_numpy(classes),
            len(CLASSES),
            official_test=sum(len(y) for _, y, _ in tested),
            **AS_THEY_ARE,
            owners=Owners(tuple(map(str, SUBJECTS)), of),
        )


def _file(part: str, subject: int) -> str:
    return f"{part}/subject{subject}.dat"


def _windows_of(
    name: str, folder: Path, subject: int, label: str
) -> tuple[np.ndarray, np.ndarray]:
    """Read a subject's windows, float32 [windows, 9, 3, 256], and their classes, int64,
    in the order of time.

    Windows of no activity of CLASSES are left out; none crosses from one file to the
    next. Raises UserError.
    """
    parts = ["Protocol", "Optional"] if subject in OPTIONAL else ["Protocol"]
    windows = []
    classes = []
    for part in parts:
        path = folder / _file(part, subject)
        lines = _windows.table(name, path)
        if lines.shape[1] != COLUMNS:
            raise UserError(
                f"{path}: {lines.shape[1]} numbers a line, must be {COLUMNS}"
            )
        signals = np.nan_to_num(lines[:, SIGNALS], nan=0.0)
        for first in range(0, len(lines) - STEPS + 1, STRIDE):
            steps = slice(first, first + STEPS)
            activity = _activity(lines[steps, ACTIVITY], label)
            if activity in CLASSES:
                window = signals[steps].reshape(STEPS, len(SENSORS), CHANNELS)
                windows.append(window.transpose(2, 1, 0))
                classes.append(CLASSES[activity])
    if not windows:
        raise UserError(f"{folder}: subject {subject} has no window of an activity")
    return np.stack(windows), np.array(classes, np.int64)


def _activity(steps: np.ndarray, label: str) -> int | None:
    """Return the activity of a window's ``steps``; None where none fills enough of it."""
    numbers, counts = np.unique(steps, return_counts=True)
    if label == "pfllib":
        return int(numbers[0])
    most = int(counts.argmax())
    if counts[most] < MAJORITY * len(steps):
        return None
    return int(numbers[most])


plugin = Pamap2()
