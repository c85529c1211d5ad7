"""Windows of sensors by subject: text files of numbers, and a split in time."""

import io
from pathlib import Path

import numpy as np

from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, user_files

MOST_BYTES = 1 << 30  # of a text file
SHARE = 0.75  # of a subject's windows of one class that are for training, as in PFLlib


def table(name: str, path: Path) -> np.ndarray:
    """Read the numbers in a text file of the data set ``name``, float32 [lines,
    columns]; NaN is one.

    Raises UserError.
    """
    try:
        content = user_files.read_bytes(path, MOST_BYTES)
        numbers = np.loadtxt(io.BytesIO(content), dtype=np.float32, ndmin=2)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; hpcfl datasets {name} says what is needed and "
            "where it is fetched"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read as lines of as many numbers each "
            f"({atomic.reason(error)})"
        ) from None
    heartbeat.beat()
    return numbers


def split_in_time(
    subjects: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows to train and to test on, int64, ascending.

    Of each subject's windows of each class the first are for training, the last for
    testing. Neighbours overlap by half, so that the one between them is left out.

    Args:
        subjects: Whose each window is, [windows] in the order of time.
        classes: The class of each, [windows].
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
