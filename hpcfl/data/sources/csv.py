"""A table in a CSV file (``data.file``), a row for each sample, headings in the first,
with a column of clients.

The keys ``features``, ``label``, ``client``, ``split`` and ``encode`` name the columns
and say how they are read. Columns hold numbers or texts; no field may be empty. Labels,
clients and parts are compared as they are written: ``01`` is not ``1``.
"""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.checks import is_number, refuse_infinite, refuse_repeated
from hpcfl.data.sources import _identifiers, _table
from hpcfl.data.sources._columns import Columns
from hpcfl.data.sources.base import MOST_BYTES
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, user_files

SEPARATORS = ";\t|"  # of other tables


class _CsvColumns(Columns):
    def __init__(self, root: Path, content: bytes) -> None:
        headings = _parsed(content, header=None, nrows=1, dtype=str)
        self._root = root
        self._content = content
        self.names = headings.iloc[0].tolist()
        _refuse_other_separator(root, self.names)
        self.index = [name for name in self.names if _identifiers.is_index(name)]
        _refuse_numbers(root, self.names)
        # pandas writes an index of several levels as columns without headings
        refuse_repeated(root, "heading", [name for name in self.names if name])
        self._frame = self._columns(na_values=[""])

    def _columns(self, **options: Any) -> Any:
        """Return the rows below the headings, columns by position."""
        positions = range(len(self.names))
        return _parsed(self._content, header=0, names=positions, **options)

    def column(self, name: str) -> np.ndarray:
        where = f"{self._root}: column '{name}'"
        series = self._frame[self.names.index(name)]
        missing = np.flatnonzero(series.isna().to_numpy())
        if len(missing):
            raise UserError(f"{where}: row {missing[0] + 1} has no value")
        values: np.ndarray = series.to_numpy()
        if values.dtype.kind in "iufb":
            refuse_infinite(where, values, 1)
            return values
        return _texts(series)

    def as_written(self, name: str) -> np.ndarray:
        """Return integers where each is written in the usual way, else texts."""
        values = self.column(name)
        position = self.names.index(name)
        written = _texts(self._columns(usecols=[position], dtype=str)[position])
        usual = values.dtype.kind in "iu" and np.array_equal(_texts(values), written)
        return values if usual else written


def _refuse_other_separator(root: Path, headings: list[str]) -> None:
    """Raise UserError where all headings stand in one, as ``a;b;c``."""
    for separator in SEPARATORS:
        if len(headings) == 1 and separator in headings[0]:
            raise UserError(
                f"{root}: columns are separated by {separator!r}; separate them by ',' and "
                "write decimals with '.' (pandas: read_csv(…, sep=…, decimal=…).to_csv)"
            )


def _refuse_numbers(root: Path, headings: list[str]) -> None:
    """Raise UserError where the first line holds a sample; 0, 1, 2, … may be headings."""
    if headings == [str(position) for position in range(len(headings))]:
        return
    if all(is_number(heading) for heading in headings):
        raise UserError(
            f"{root}: the first line holds numbers; add a line of headings before it"
        )


def _texts(values: Any) -> np.ndarray:
    texts = np.empty(len(values), object)
    texts[:] = [str(value) for value in values]
    return texts


def _parsed(content: bytes, **options: Any) -> Any:
    """Parse a CSV file by pandas, which takes no text but an empty field for a missing
    value.
    """
    import pandas  # takes a second to import and is needed here only

    with warnings.catch_warnings():
        # pandas warns of rows with more fields than there are headings
        warnings.simplefilter("error")
        return pandas.read_csv(
            io.BytesIO(content),
            index_col=False,
            keep_default_na=False,
            low_memory=False,
            **options,
        )


class Csv(_table.TableSource):
    def opened(self, root: Path) -> Columns:
        import pandas

        try:
            table = _CsvColumns(root, user_files.read_bytes(root, MOST_BYTES))
        except FileNotFoundError:
            raise UserError(f"{root}: no such file") from None
        except (OSError, ValueError, pandas.errors.ParserWarning) as error:
            raise UserError(
                f"{root}: cannot be read as csv ({atomic.reason(error)})"
            ) from None
        heartbeat.beat()
        return table


plugin = Csv()
