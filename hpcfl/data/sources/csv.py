"""A table in a CSV file (``data.file``) with headings in the first line and a sample
per row, optionally with a column of clients.

The keys ``features``, ``label``, ``client``, ``split`` and ``encode`` name the columns
and their encoding. Columns hold numbers or texts; no field may be empty. Labels,
clients and parts are compared as written: ``01`` is not ``1``.
"""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data import checks
from hpcfl.data.sources import features
from hpcfl.data.sources.base import MOST_BYTES
from hpcfl.data.sources.features import Columns
from hpcfl.data.sources.tabular import TableSource
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

SEPARATORS = ";\t|"  # separators that are refused with advice


class _CsvColumns(Columns):
    def __init__(self, root: Path, content: bytes) -> None:
        self._root = root
        self._content = content
        self.names = self._parse(header=None, nrows=1, dtype=str).iloc[0].tolist()
        for separator in SEPARATORS:
            if len(self.names) == 1 and separator in self.names[0]:
                raise UserError(
                    f"{root}: columns are separated by {separator!r}; separate them by ',' and "
                    "write decimals with '.' (pandas: read_csv(…, sep=…, decimal=…).to_csv)"
                )
        positions = list(map(str, range(len(self.names))))
        if self.names != positions and all(map(checks.is_number, self.names)):
            raise UserError(
                f"{root}: the first line holds numbers; add a line of headings before it"
            )
        self.index = [name for name in self.names if features.is_index(name)]
        # empty headings may repeat: pandas writes one for each level of an index
        checks.refuse_repeated(root, "heading", [name for name in self.names if name])
        self._frame = self._parse_rows(na_values=[""])

    def _parse_rows(self, **options: Any) -> Any:
        """Return the rows below the headings; columns are named by position."""
        return self._parse(header=0, names=range(len(self.names)), **options)

    def _parse(self, **options: Any) -> Any:
        """Parse the file by pandas; texts such as "NA" are not missing values."""
        import pandas  # the import takes a second, and only this function needs it

        with warnings.catch_warnings():
            # pandas only warns of rows with more fields than headings
            warnings.simplefilter("error")
            return pandas.read_csv(
                io.BytesIO(self._content),
                index_col=False,
                keep_default_na=False,
                low_memory=False,
                **options,
            )

    def read_column(self, name: str) -> np.ndarray:
        where = f"{self._root}: column '{name}'"
        series = self._frame[self.names.index(name)]
        missing = np.flatnonzero(series.isna())
        if len(missing):
            raise UserError(f"{where}: row {missing[0] + 1} has no value")
        values: np.ndarray = series.to_numpy()
        if values.dtype.kind in "iufb":
            checks.refuse_infinite(where, values, 1)
            return values
        return _convert_to_texts(series)

    def read_as_written(self, name: str) -> np.ndarray:
        """Return the column as integers if all have the usual notation, else as texts."""
        values = self.read_column(name)
        position = self.names.index(name)
        rows = self._parse_rows(usecols=[position], dtype=str)
        written = _convert_to_texts(rows[position])
        usual = (
            values.dtype.kind in "iu" and (_convert_to_texts(values) == written).all()
        )
        return values if usual else written


def _convert_to_texts(values: Any) -> np.ndarray:
    return np.array(list(map(str, values)), object)


class Csv(TableSource):
    def open(self, root: Path) -> Columns:
        with untrusted_files.refuse_unreadable(root, "csv"):
            return _CsvColumns(root, untrusted_files.read_user_file(root, MOST_BYTES))


plugin = Csv()
