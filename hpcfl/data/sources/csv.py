"""A table in a CSV file (``data.file``), a row for each sample, headings in the first,
with a column of clients.

The keys ``features``, ``label``, ``client`` and ``split`` name the columns. Columns hold
numbers or texts; no field may be empty.
"""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.sources import _table
from hpcfl.data.sources.base import MOST_BYTES
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, regular


class _CsvColumns(_table.Columns):
    def __init__(self, root: Path, frame: Any) -> None:
        self._root = root
        self._frame = frame
        self.names = [str(name) for name in frame.columns]

    def column(self, name: str) -> np.ndarray:
        series = self._frame[name]
        missing = np.flatnonzero(series.isna().to_numpy())
        if len(missing):
            raise UserError(
                f"{self._root}: column '{name}': row {missing[0] + 1} has no value"
            )
        values: np.ndarray = series.to_numpy()
        if values.dtype.kind in "iufb":
            return values
        texts = np.empty(len(values), object)
        texts[:] = [str(value) for value in values]
        return texts


class Csv(_table.TableSource):
    def opened(self, root: Path) -> _table.Columns:
        import pandas  # takes a second to import and is needed here only

        try:
            content = regular.read_bytes(root, MOST_BYTES)
            with warnings.catch_warnings():
                # pandas warns of rows with more fields than there are headings
                warnings.simplefilter("error")
                frame = pandas.read_csv(
                    io.BytesIO(content),
                    index_col=False,
                    keep_default_na=False,
                    na_values=[""],
                    low_memory=False,
                )
        except FileNotFoundError:
            raise UserError(f"{root}: no such file") from None
        except (OSError, ValueError, pandas.errors.ParserWarning) as error:
            raise UserError(
                f"{root}: cannot be read as csv ({atomic.reason(error)})"
            ) from None
        heartbeat.beat()
        return _CsvColumns(root, frame)


plugin = Csv()
