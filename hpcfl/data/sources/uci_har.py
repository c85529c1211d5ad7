"""UCI HAR (Anguita et al. 2013): 10,299 windows 9×1×128 of a telephone's motion, 6
activities, 30 subjects, in text files.

The channels are acceleration of the body, its rotation, and the total acceleration,
each by x, y and z, 128 steps at 50 Hz. Subjects are the clients of
``partition.scheme = "by-client"`` (heterogeneity.md D7).

The publishers' split keeps subjects apart, so that no client could be tested:
``split = "official"``. Else the last quarter of a subject's windows of each activity are
for testing. PFLlib draws its own at random, but windows overlap by half, so that
neighbours would lie on both sides. It also reshapes windows [128, 9] to [9, 1, 128],
which mixes the channels: ``layout = "pfllib"``.
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

FOLDER = "UCI HAR Dataset"
PARTS = {"train": 7352, "test": 2947}
CHANNELS = [
    f"{signal}_{axis}"
    for signal in ("body_acc", "body_gyro", "total_acc")
    for axis in "xyz"
]
STEPS, ACTIVITIES, SUBJECTS = 128, 6, 30


class UciHar(Source):
    licence = "CC BY 4.0"
    home = "https://archive.ics.uci.edu/dataset/240"

    @property
    def looked_for(self) -> list[str]:
        files = []
        for part in PARTS:
            files += [f"{FOLDER}/{_of_signal(part, channel)}" for channel in CHANNELS]
            files += [f"{FOLDER}/{part}/{kind}_{part}.txt" for kind in ("y", "subject")]
        return files

    def read(
        self,
        name: str,
        root: Path,
        *,
        split: Annotated[
            Literal["in-time", "official"],
            Field(
                description="the last quarter of each subject's windows is for testing, or "
                "the publishers' split, which keeps subjects apart"
            ),
        ] = "in-time",
        layout: Annotated[
            Literal["channels", "pfllib"],
            Field(description="how a window is laid out; pfllib: channels are mixed"),
        ] = "channels",
    ) -> Dataset:
        x = np.concatenate([_signals(name, root / FOLDER, part) for part in PARTS])
        activities = _numbers(name, root / FOLDER, "y", ACTIVITIES)
        subjects = _numbers(name, root / FOLDER, "subject", SUBJECTS)
        if layout == "pfllib":
            x = np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(x.shape)
        order = np.arange(len(x))
        tested = PARTS["test"]
        if split == "in-time":
            train, test = _windows.split_in_time(subjects, activities)
            order = np.concatenate([train, test])
            tested = len(test)
        names = tuple(str(number) for number in range(1, SUBJECTS + 1))
        return Dataset(
            name,
            torch.from_numpy(x[order]).unsqueeze(2),
            torch.from_numpy(activities[order]),
            ACTIVITIES,
            official_test=tested,
            **AS_THEY_ARE,
            owners=Owners(names, subjects[order]),
        )


def _of_signal(part: str, channel: str) -> str:
    return f"{part}/Inertial Signals/{channel}_{part}.txt"


def _signals(name: str, folder: Path, part: str) -> np.ndarray:
    """Read the windows of a part, float32 [windows, 9, 128]. Raises UserError."""
    signals = []
    for channel in CHANNELS:
        path = folder / _of_signal(part, channel)
        signal = _windows.table(name, path)
        if signal.shape != (PARTS[part], STEPS):
            raise UserError(
                f"{path}: {signal.shape[0]:,} lines of {signal.shape[1]:,} numbers; it must "
                f"have {PARTS[part]:,} of {STEPS}"
            )
        signals.append(signal)
    return np.stack(signals, axis=1)


def _numbers(name: str, folder: Path, kind: str, most: int) -> np.ndarray:
    """Read the activity or subject of each window, counted from 0, int64 [windows].
    Raises UserError.
    """
    numbers = []
    for part, windows in PARTS.items():
        path = folder / part / f"{kind}_{part}.txt"
        column = _windows.table(name, path)
        allowed = np.isin(column, np.arange(1, most + 1)).all()
        if column.shape != (windows, 1) or not allowed:
            raise UserError(
                f"{path}: must have {windows:,} lines with a number from 1 to {most} each"
            )
        numbers.append(column[:, 0].astype(np.int64) - 1)
    return np.concatenate(numbers)


plugin = UciHar()
