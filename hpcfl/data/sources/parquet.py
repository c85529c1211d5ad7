"""A table in Parquet, a row for each sample: a file or a folder of them (``data.file``),
such as Hugging Face's, with a column of clients.

The keys ``features``, ``label``, ``client`` and ``split`` name the columns. Without a
column of parts, files called ``train-…`` and ``test-…`` say which rows are for training.
Needs pyarrow: ``pip install ".[parquet]"`` in the folder of hpcfl (heterogeneity.md
D11).
"""

from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.sources import _arrow, _table
from hpcfl.data.sources.base import MOST_BYTES
from hpcfl.data.sources.npz import RATIO, UNPACKED
from hpcfl.errors import UserError
from hpcfl.files import atomic, regular

MOST_FILES = 10_000
PARTS = (_table.TRAIN, _table.TEST, "validation")


class _ParquetColumns(_arrow.ArrowColumns):
    def __init__(self, root: Path, paths: list[Path]) -> None:
        self._files = [_opened(path) for path in paths]
        lengths = [file.metadata.num_rows for file in self._files]
        schemas = [file.schema_arrow for file in self._files]
        super().__init__(root, schemas, sum(lengths))
        parts = [path.name.partition("-")[0] for path in paths]
        if all(part in PARTS for part in parts):
            self.split = np.repeat(np.array(parts, object), lengths)

    def chunks(self, name: str) -> list[Any]:
        found = []
        for file in self._files:
            try:
                column = file.read(columns=[name], use_threads=False)[name]
            except Exception as error:  # pyarrow raises many kinds
                raise UserError(
                    f"{self.root}: column '{name}' cannot be read ({atomic.reason(error)})"
                ) from None
            found += column.chunks
        return found


def _opened(path: Path) -> Any:
    """A Parquet file. Raises UserError where it is none, or would fill the memory from
    next to nothing.
    """
    arrow = _arrow.pyarrow()
    try:
        content = regular.read_bytes(path, MOST_BYTES)
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

    def opened(self, root: Path) -> _table.Columns:
        if not root.is_dir():
            return _ParquetColumns(root, [root])
        paths = sorted(root.glob("*.parquet"))
        if not 0 < len(paths) <= MOST_FILES:
            raise UserError(
                f"{root}: must hold .parquet files, from 1 to {MOST_FILES:,}; it holds "
                f"{len(paths):,}"
            )
        return _ParquetColumns(root, paths)


plugin = Parquet()
