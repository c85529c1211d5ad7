"""AG News (Zhang et al., NeurIPS 2015): 120,000 + 7,600 news items in 4 classes, 200
token ids each.

The encoding is that of FedALA's code (protocols.md C). Title and description of an item
are cut into the tokens of torchtext's "basic_english". The vocabulary covers training
and test file, ordered by frequency and then alphabetically. Unknown words and padding
are 0. Items are cut or padded on the right. The test file alone suffices for a run,
which then prints a note.
"""

import csv
import io
import re
from collections import Counter
from pathlib import Path

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.data.sources.base import CheckedFiles
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

POSITIONS = 200
LABELS = ("1", "2", "3", "4")
_BREAKS = re.compile(r"<br />|[;:]")  # replaced by blanks
_TOKEN = re.compile(r"['.,()!?]|[^\s'.,()!?]+")  # each punctuation mark is a token


def tokenise(text: str) -> list[str]:
    """Return the tokens of a text: lower case, without double quotes, split at blanks
    and punctuation.
    """
    return _TOKEN.findall(_BREAKS.sub(" ", text.lower().replace('"', "")))


def encode(
    texts: list[list[str]], positions: int = POSITIONS, known: int | None = None
) -> tuple[np.ndarray, int]:
    """Encode tokenised texts as token ids.

    Args:
        texts: tokens of each text.
        positions: length of an encoded text; longer texts are cut, shorter ones padded
            with 0.
        known: number of texts, from the first, that the vocabulary is made from; None
            for all.

    Returns:
        The token ids, int32 [texts, positions], and the number of different ids.
    """
    frequencies = Counter(word for text in texts[:known] for word in text)
    ordered = sorted(frequencies, key=lambda word: (-frequencies[word], word))
    numbers = {word: position for position, word in enumerate(ordered, start=1)}
    ids = np.zeros((len(texts), positions), np.int32)
    for row, text in zip(ids, texts, strict=True):
        kept = text[:positions]
        row[: len(kept)] = [numbers.get(word, 0) for word in kept]
    return ids, len(numbers) + 1


class CsvFiles(CheckedFiles):
    """Training and test file in CSV format, in this order, with the columns class
    (1 … 4), title and description.
    """

    def read(self, name: str, root: Path) -> Dataset:
        train, test = self.checksums
        alone = not (root / self.folder / train).exists()
        parts = [
            _parse_rows(root / self.folder / file, self.read_verified(name, root, file))
            for file in ([test] if alone else [train, test])
        ]
        rows = [row for part in parts for row in part]
        ids, vocabulary = encode([tokenise(" ".join(row[1:])) for row in rows])
        notes = (
            f"{root / self.folder}: {train} is missing; the data set has only the "
            f"{len(rows):,} samples of {test}",
        )
        return Dataset.from_arrays(
            name,
            ids,
            np.array([int(row[0]) - 1 for row in rows]),
            len(LABELS),
            official_test=0 if alone else len(parts[1]),
            vocabulary=vocabulary,
            numbers_words=True,
            notes=notes if alone else (),
        )


def _parse_rows(path: Path, content: bytes) -> list[list[str]]:
    """Return the rows of a CSV file. Raises UserError if a row does not begin with a
    class.
    """
    with untrusted_files.refuse_unreadable(path, "csv"):
        rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    for position, row in enumerate(rows, start=1):
        if not row or row[0] not in LABELS:
            raise UserError(
                f"{path}: row {position} must begin with a class, {' or '.join(LABELS)}; "
                f"it is {', '.join(row)!r:.60}"
            )
    return rows


plugin = CsvFiles(
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    "ag_news_csv",
    {
        "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
        "test.csv": "d52ea96a97a2d943681189a97654912d",
    },
    licence="non-commercial use",
)
