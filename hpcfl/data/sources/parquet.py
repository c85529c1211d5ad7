"""A table in Parquet, a row for each sample: a file or a folder of them (``data.file``),
such as Hugging Face's, with a column of clients.

The keys ``features``, ``label``, ``client`` and ``split`` name the columns. Without a
column of parts, the words ``train`` and ``test`` in the names of a folder's files say
which rows are for training. All files have the same columns, in any order.
Needs pyarrow: ``pip install ".[parquet]"`` in the folder of hpcfl (heterogeneity.md
D11).
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.sources import _arrow, _names, _table
from hpcfl.data.sources._columns import Columns
from hpcfl.data.sources._schemas import refuse_missing_shards
from hpcfl.data.sources.base import MOST_BYTES
from hpcfl.data.sources.npz import RATIO, UNPACKED
from hpcfl.errors import UserError
from hpcfl.files import atomic, user_files

MOST_FILES = 10_000
# words in names of files; only the rows of the first two are taken
PARTS = {_names.TRAIN, _names.TEST, "validation", "valid", "val", "dev"}


class _ParquetColumns(_arrow.ArrowColumns):
    def __init__(self, root: Path, paths: list[Path]) -> None:
        pieces = [_piece(path) for path in paths]
        super().__init__(root, pieces)
        parts = [_part(path) for path in paths] if root.is_dir() else [None]
        if None not in parts:
            lengths = [piece.rows for piece in pieces]
            self.split = np.repeat(np.array(parts, object), lengths)
        elif set(parts) != {None}:
            other = paths[parts.index(None)].name
            raise UserError(
                f"{root}: some files are named by their part, train or test, but not {other!r}; "
                "name all so, or none"
            )


def _part(path: Path) -> str | None:
    """Return the part of the data that a file's name says, if it is one."""
    words = set(re.split(r"[^a-z]+", path.stem.lower()))
    parts = words & PARTS
    return parts.pop() if len(parts) == 1 else None


def _piece(path: Path) -> _arrow.Piece:
    """Open a Parquet file as a piece of a table. Raises UserError."""
    file = _opened(path)

    def read(name: str) -> list[Any]:
        chunks: list[Any] = file.read(columns=[name], use_threads=False)[name].chunks
        return chunks

    return _arrow.Piece(path, file.schema_arrow, file.metadata.num_rows, read)


def _opened(path: Path) -> Any:
    """Open a Parquet file. Raises UserError where it is none, or would fill the memory
    from next to nothing.
    """
    arrow = _arrow.pyarrow()
    try:
        content = user_files.read_bytes(path, MOST_BYTES)
        opened = arrow.parquet.ParquetFile(arrow.BufferReader(content))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # pyarrow raises many kinds
        raise UserError(
            f"{path}: cannot be read as a Parquet file ({atomic.reason(error)})"
        ) from None
    groups = range(opened.metadata.num_row_groups)
    unpacked = sum(opened.metadata.row_group(group).total_byte_size for group in groups)
    if unpacked > max(UNPACKED, RATIO * len(content)):
        raise UserError(
            f"{path}: would grow from {len(content):,} to {unpacked:,} bytes, at most {RATIO} "
            "times are allowed"
        )
    return opened


class Parquet(_table.TableSource):
    @property
    def looked_for(self) -> list[str]:
        return ["*.parquet"]

    def opened(self, root: Path) -> Columns:
        if not root.is_dir():
            return _ParquetColumns(root, [root])
        paths = sorted(root.glob("*.parquet"))
        if not 0 < len(paths) <= MOST_FILES:
            raise UserError(
                f"{root}: must hold .parquet files, from 1 to {MOST_FILES:,}; it holds "
                f"{len(paths):,}"
            )
        refuse_missing_shards(root, [path.name for path in paths])
        return _ParquetColumns(root, paths)


plugin = Parquet()
