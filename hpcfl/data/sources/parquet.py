"""A table in Parquet with a sample per row: a file, or a folder of files
(``data.file``), for example Hugging Face's, optionally with a column of clients.

The keys ``features``, ``label``, ``client`` and ``split`` name the columns. Without a
column of parts, the words ``train`` and ``test`` in file names select rows for training
and testing. All files have the same columns, in any order. This needs pyarrow:
``pip install ".[parquet]"`` in the folder of hpcfl (heterogeneity.md D11).
"""

import re
from pathlib import Path
from typing import Any

from hpcfl.data.sources import arrow
from hpcfl.data.sources.arrow import ArrowColumns, File
from hpcfl.data.sources.base import MOST_BYTES
from hpcfl.data.sources.npz import RATIO, UNPACKED
from hpcfl.data.sources.tabular import TEST, TRAIN, TableSource
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

MOST_FILES = 10_000
# words in file names; only train and test are read
PARTS = {TRAIN, TEST, "validation", "valid", "val", "dev"}


class Parquet(TableSource):
    looked_for = ("*.parquet",)

    def open(self, root: Path) -> ArrowColumns:
        if not root.is_dir():
            return ArrowColumns(root, [File(root, _read(root))])
        paths = sorted(root.glob("*.parquet"))
        if not 0 < len(paths) <= MOST_FILES:
            raise UserError(
                f"{root}: must hold .parquet files, from 1 to {MOST_FILES:,}; it holds "
                f"{len(paths):,}"
            )
        arrow.refuse_missing_shards(root, [path.name for path in paths])
        files = [File(path, _read(path), _find_part(path)) for path in paths]
        return ArrowColumns(root, files)


def _find_part(path: Path) -> str | None:
    """Return the part that a file's name contains; None for none or several."""
    words = set(re.split(r"[^a-z]+", path.stem.lower()))
    parts = words & PARTS
    return parts.pop() if len(parts) == 1 else None


def _read(path: Path) -> Any:
    """Return the table in a Parquet file.

    Raises UserError for other formats and extreme compression ratios.
    """
    pyarrow = arrow.import_pyarrow()
    with untrusted_files.refuse_unreadable(path, "a Parquet file"):
        content = untrusted_files.read_user_file(path, MOST_BYTES)
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content))
        unpacked = 0
        for group in range(file.metadata.num_row_groups):
            unpacked += file.metadata.row_group(group).total_byte_size
        if unpacked > max(UNPACKED, RATIO * len(content)):
            raise ValueError(
                f"it would grow from {len(content):,} to {unpacked:,} bytes, more than {RATIO} "
                "times"
            )
        return file.read(use_threads=False)


plugin = Parquet()
