"""Columns of Arrow's tables as arrays: numbers, texts, lists of numbers, and images as
Hugging Face stores them.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcfl.data.checks import refuse_infinite, refuse_repeated
from hpcfl.data.sources import _images, _schemas
from hpcfl.data.sources._columns import Columns
from hpcfl.data.sources._table import MOST_ROWS
from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat

SHOWN = 20  # names of classes in an error


def pyarrow() -> Any:
    """Import the library, which is an extra. Raises UserError where it is missing."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            'this data set is read by pyarrow, which is missing: pip install ".[parquet]" '
            "in the folder of hpcfl"
        ) from None
    return pyarrow


class Piece(NamedTuple):
    """A file of a table: its schema, its number of rows and a reader of one column, which
    returns Arrow's arrays.
    """

    path: Path
    schema: Any
    rows: int
    read: Callable[[str], list[Any]]


class ArrowColumns(Columns):
    """A table in several files, one after the other, with the same columns."""

    def __init__(self, root: Path, pieces: Sequence[Piece]) -> None:
        rows = sum(piece.rows for piece in pieces)
        if not 0 < rows <= MOST_ROWS:
            raise UserError(f"{root}: {rows:,} rows; it must have 1 to {MOST_ROWS:,}")
        self._root = root
        self._pieces = [piece for piece in pieces if piece.rows]
        self._class_names = []
        first = self._pieces[0]
        for piece in self._pieces:
            refuse_repeated(piece.path, "column", piece.schema.names)
            _schemas.refuse_other_columns(
                first.path, first.schema, piece.path, piece.schema
            )
            names = _schemas.class_names(piece.path, piece.schema)
            self._class_names.append(names)
        self.rows_by_file = [piece.rows for piece in self._pieces]
        self._schema = first.schema
        self.names = list(self._schema.names)
        self.index = _schemas.index_columns(self._schema)

    def column(self, name: str) -> np.ndarray:
        parts: list[np.ndarray] = []
        for piece, names in zip(self._pieces, self._class_names, strict=True):
            where = f"{piece.path}: column '{name}'"
            own = []
            row = 1
            for chunk in _chunks(piece, name):
                own.append(_values(where, chunk, row))
                row += len(chunk)
                heartbeat.beat()
            found = self._one_shape(name, own)
            parts.append(self._renumbered(where, found, names.get(name), name))
        return self._one_shape(name, parts)

    def _one_shape(self, name: str, parts: list[np.ndarray]) -> np.ndarray:
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            raise UserError(
                f"{self._root}: column '{name}': all rows must have one shape; it has "
                f"{' and '.join(map(str, sorted(shapes)[:2]))}"
            )
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def class_names(self, name: str) -> list[str] | None:
        return self._class_names[0].get(name)

    def is_categorical(self, name: str) -> bool:
        declared = _schemas.categorical_columns(self._schema)
        return name in declared or name in self._class_names[0]

    def _renumbered(
        self, where: str, values: np.ndarray, own: list[str] | None, name: str
    ) -> np.ndarray:
        """Return class numbers as the first file numbers the classes of the same names.

        own: names of the classes in the file of ``values``. Raises UserError where the
        files name other classes.
        """
        names = self.class_names(name)
        if names is not None and values.size and not _are_below(values, len(names)):
            raise UserError(
                f"{where} holds {values.min()} … {values.max()}; the numbers of its "
                f"{len(names)} classes are 0 … {len(names) - 1}"
            )
        if own == names:
            return values
        if own is None or names is None or sorted(own) != sorted(names):
            raise UserError(
                f"{where} has the classes {_listed(own)}; {self._pieces[0].path} has "
                f"{_listed(names)}; all files must name the same classes"
            )
        numbers = np.array([names.index(one) for one in own])
        renumbered: np.ndarray = numbers[values]
        return renumbered


def _are_below(values: np.ndarray, bound: int) -> bool:
    return bool(values.min() >= 0 and values.max() < bound)


def _listed(names: list[str] | None) -> str:
    if names is None:
        return "without names"
    more = ", …" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _chunks(piece: Piece, name: str) -> list[Any]:
    """Read a column of a file. Raises UserError."""
    try:
        chunks = piece.read(name)
    except Exception as error:  # pyarrow raises many kinds
        raise UserError(
            f"{piece.path}: column '{name}' cannot be read ({atomic.reason(error)})"
        ) from None
    return [chunk for chunk in chunks if len(chunk)]


def _values(where: str, array: Any, row: int) -> np.ndarray:
    """Return the values of a piece of a column, the first of which is in row ``row``.

    Raises UserError.
    """
    types = pyarrow().types
    if isinstance(array, pyarrow().ExtensionArray):
        array = array.storage  # such as datasets' Array2D, where datasets is imported
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        missing = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserError(f"{where}: row {row + missing} has no value")
    kind = array.type
    if types.is_struct(kind) and "bytes" in [field.name for field in kind]:
        return _pictures(where, array, row)
    if _is_text(types, kind):
        texts = np.empty(len(array), object)
        texts[:] = array.to_pylist()
        return texts
    if _is_list(types, kind):
        return _lists(where, array, row)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        numbers: np.ndarray = array.to_numpy(zero_copy_only=False)
        refuse_infinite(where, numbers, row)
        return numbers
    raise UserError(
        f"{where}: {kind} is not read; numbers, texts, lists of numbers and images are; "
        "convert it, or leave it out by data.features"
    )


def _is_text(types: Any, kind: Any) -> bool:
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )


def _is_list(types: Any, kind: Any) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def _lists(where: str, array: Any, row: int) -> np.ndarray:
    """Return lists of as many numbers each, perhaps nested, [rows, …].

    row: number of the first one. Raises UserError.
    """
    arrow = pyarrow()
    types = arrow.types
    shape = [len(array)]
    while _is_list(types, array.type):
        inner = array.flatten()
        sizes = arrow.compute.list_value_length(array).unique().to_pylist()
        if len(sizes) != 1 or not sizes[0]:
            raise UserError(f"{where}: lists must have as many numbers each")
        shape.append(sizes[0])
        array = inner
    if array.null_count or not (
        types.is_integer(array.type) or types.is_floating(array.type)
    ):
        raise UserError(f"{where}: lists must hold numbers, all of them; {array.type}")
    numbers: np.ndarray = array.to_numpy(zero_copy_only=False).reshape(shape)
    refuse_infinite(where, numbers, row)
    return numbers


def _pictures(where: str, array: Any, row: int) -> np.ndarray:
    """Decode images that lie in the table itself, uint8 [rows, channels, height,
    width].

    The files that their paths name are not opened. Raises UserError.
    """
    images: list[np.ndarray] = []
    for number, content in enumerate(array.field("bytes").to_pylist(), start=row):
        place = f"{where}: row {number}"
        if content is None:
            raise UserError(f"{place} has no bytes of an image; a path is not opened")
        image = _images.decoded(io.BytesIO(content), place, "PNG", "JPEG", mode=None)
        if images and image.shape != images[0].shape:
            raise UserError(
                f"{place} is {_size(image)}, row {row} {_size(images[0])}; all must be alike"
            )
        images.append(image)
    return np.stack(images)


def _size(image: np.ndarray) -> str:
    return "×".join(map(str, image.shape))
