"""Samples of LEAF's users as arrays."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.sources import _images
from hpcfl.data.sources.npz import MOST_CLASSES
from hpcfl.files import values

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
POSITIONS = 80  # letters of a sample
TWEET = 4  # where a tweet's text stands
PORTRAIT = (84, 84)

Rows = list[list[float]] | list[list[str]] | list[str]
Labels = list[int] | list[float] | list[str]


def convert_samples(
    user: str, x: Rows, y: Labels, images: Path | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return one user's samples, as of ``User``, and classes as numbers.

    Raises ValueError, or UserError for images.
    """
    if len(x) != len(y) or not y:
        raise ValueError(f"user '{user}' has {len(x)} samples and {len(y)} classes")
    if isinstance(x[0], str) and (images is None or isinstance(y[0], str)):
        whole_texts = all(len(text) == POSITIONS for text in x)
        letters = all(isinstance(label, str) and len(label) == 1 for label in y)
        if not whole_texts or not letters:
            raise ValueError(
                f"user '{user}': texts must have {POSITIONS} letters, and classes one; "
                "CelebA's names of images need data.images, their folder"
            )
        return _letters(x) + 1, _letters(y)[:, 0] % len(LETTERS)
    if isinstance(y[0], str):
        raise ValueError(
            f"user '{user}': samples must be lists of as many numbers each, classes integers"
        )
    classes = np.array(y, np.int64)
    if not np.array_equal(classes, y):
        raise ValueError(f"user '{user}': classes must be integers")
    if classes.min() < 0 or classes.max() >= MOST_CLASSES:
        raise ValueError(
            f"user '{user}': classes must be from 0 to {MOST_CLASSES - 1:,}"
        )
    if isinstance(x[0], str):
        return _portraits(user, x, images), classes
    if isinstance(x[0], list) and x[0] and isinstance(x[0][0], str):
        return _tweets(user, x), classes
    return _values(user, x), classes


def _values(user: str, rows: list[Any]) -> np.ndarray:
    """Return one user's rows of numbers, float32 [n, numbers]. Raises ValueError."""
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise ValueError(
            f"user '{user}': samples must be lists of as many numbers each, classes integers"
        )
    array = np.array(rows, float)
    place = values.describe_nonfinite(array)
    if place:
        raise ValueError(f"user '{user}': x{place}")
    return array.astype(np.float32)


def _tweets(user: str, rows: list[Any]) -> np.ndarray:
    """Return the texts of one user's tweets, objects [n]. Raises ValueError."""
    texts = np.empty(len(rows), object)
    for position, row in enumerate(rows):
        if len(row) <= TWEET:
            raise ValueError(
                f"user '{user}': a tweet must be a list of texts, the fifth of which is "
                f"read; one has {len(row)}"
            )
        texts[position] = row[TWEET]
    return texts


def _portraits(user: str, names: list[Any], folder: Path | None) -> np.ndarray:
    """Read the images of one user, uint8 [n, 3, height, width]. Raises ValueError for a
    name with a path, UserError for a file that is no image.
    """
    assert folder is not None  # else the names are read as texts
    images = []
    for name in names:
        if not re.fullmatch(_images.NAME, name):
            raise ValueError(f"user '{user}': {name!r:.60} is no name of an image")
        images.append(_images.read(folder / name, "JPEG", resized=PORTRAIT))
    return np.stack(images)


def _letters(texts: list[Any]) -> np.ndarray:
    """Return the numbers of all letters in the alphabet, int64 [texts, letters]; −1 for
    others.
    """
    strings = np.array(texts, f"U{len(texts[0])}")
    codes = strings.view(np.uint32).reshape(len(texts), -1)
    numbers = np.full(128, -1, np.int64)  # by code, of ASCII
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    # Codes beyond ASCII are read as 0, which is no letter of the alphabet.
    return numbers[np.where(codes < len(numbers), codes, 0)]
