"""Read columns of Arrow tables as arrays, with the metadata that the tables contain.

Columns hold numbers, texts, lists of numbers, or images in the format of Hugging Face.
The metadata name classes, categorical columns and pandas' index.
"""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcfl.data import checks
from hpcfl.data.datasets import Owners
from hpcfl.data.sources import features, pictures
from hpcfl.data.sources.features import Columns
from hpcfl.data.sources.tabular import MOST_ROWS
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording
from hpcfl.files.atomic import Damaged

# Keys of a schema's metadata, whose values are JSON: Hugging Face's types of columns;
# pandas' columns and index.
HUGGING_FACE, PANDAS = b"huggingface", b"pandas"
SHARD = re.compile(r"(.*)-\d+-of-(\d+)\b.*")  # such as train-00000-of-00002.parquet


def import_pyarrow() -> Any:
    """Import pyarrow, an optional dependency. Raises UserError if it is missing."""
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


class File(NamedTuple):
    """A file of a table.

    Attributes:
        path: the file.
        table: the table in it, a ``pyarrow.Table``.
        part: part of the data set, such as "train"; None if the file belongs to none.
        client: number of the file's client.
    """

    path: Path
    table: Any
    part: str | None = None
    client: int = 0


class ArrowColumns(Columns):
    """A table in one or more files with the same columns; their rows are joined.

    ``clients`` of the constructor: names of the clients by ``File.client``; empty if
    the files have no clients.
    """

    def __init__(
        self, root: Path, files: Sequence[File], clients: Sequence[str] = ()
    ) -> None:
        rows = sum(len(file.table) for file in files)
        if not 0 < rows <= MOST_ROWS:
            raise UserError(f"{root}: {rows:,} rows; it must have 1 to {MOST_ROWS:,}")
        self._root = root
        self._files = [file for file in files if len(file.table)]
        first = self._files[0]
        schema = first.table.schema
        self._class_names = _read_class_names(first)
        for file in self._files:
            checks.refuse_repeated(file.path, "column", file.table.schema.names)
            _refuse_other(first, file, "columns and types", _describe_columns)
            _refuse_other(first, file, "classes and their order", _describe_classes)
        self._categorical = _find_categorical(schema) | set(self._class_names)
        self.rows_by_file = [len(file.table) for file in self._files]
        self.names = list(schema.names)
        self.index = _find_index_columns(schema)
        parts = [file.part for file in self._files]
        if None not in parts:
            self.split = np.repeat(np.array(parts, object), self.rows_by_file)
        elif set(parts) != {None}:
            raise UserError(
                f"{self._files[parts.index(None)].path}: the name contains neither train nor "
                "test, but names of other files do; rename all files like this, or none"
            )
        if clients:
            of = np.repeat([file.client for file in self._files], self.rows_by_file)
            self.clients = Owners(tuple(clients), of)

    def read_column(self, name: str) -> np.ndarray:
        parts = []
        names = self.class_names(name)
        for file in self._files:
            where = f"{file.path}: column '{name}'"
            row = 1
            for chunk in file.table[name].chunks:
                if not len(chunk):
                    continue
                with untrusted_files.refuse_unreadable(where):
                    values = _read_values(where, chunk, row)
                    if names and (values.min() < 0 or values.max() >= len(names)):
                        raise UserError(
                            f"{where} holds {values.min()} … {values.max()}; the numbers of its "
                            f"{len(names)} classes are 0 … {len(names) - 1}"
                        )
                row += len(chunk)
                parts.append(values)
        shapes = sorted({part.shape[1:] for part in parts})
        if len(shapes) > 1:
            raise UserError(
                f"{self._root}: column '{name}': all rows must have the same shape; it has "
                f"{shapes[0]} and {shapes[1]}"
            )
        return np.concatenate(parts)

    def class_names(self, name: str) -> list[str] | None:
        return self._class_names.get(name)

    def is_categorical(self, name: str) -> bool:
        return name in self._categorical


def _read_values(where: str, array: Any, row: int) -> np.ndarray:
    """Return the values in a chunk of a column. Raises UserError.

    Args:
        where: file and column, for messages.
        array: the chunk, a ``pyarrow.Array``.
        row: number of its first row in the file, from 1.
    """
    arrow = import_pyarrow()
    if isinstance(array, arrow.ExtensionArray):
        array = array.storage  # such as Array2D, if the process has imported datasets
    if arrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        missing = arrow.compute.index(array.is_null(), True).as_py()
        raise UserError(f"{where}: row {row + missing} has no value")
    kind = array.type
    if arrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return _decode_pictures(where, array.field("bytes").to_pylist(), row)
    if kind in (arrow.string(), arrow.large_string(), arrow.string_view()):
        return np.array(array.to_pylist(), object)
    shape = [len(array)]
    while hasattr(array.type, "value_type"):
        sizes = arrow.compute.list_value_length(array).unique().to_pylist()
        if len(sizes) != 1 or not sizes[0]:
            raise UserError(f"{where}: all lists must have the same length")
        shape.append(sizes[0])
        array = array.flatten()
    types = arrow.types
    is_number = types.is_integer(array.type) or types.is_floating(array.type)
    if array.null_count or not (is_number or types.is_boolean(array.type)):
        raise UserError(
            f"{where}: {kind} is not supported, or a number is missing; supported are numbers, "
            "texts, lists of numbers and images; convert it, or omit it from data.features"
        )
    numbers: np.ndarray = array.to_numpy(zero_copy_only=False).reshape(shape)
    checks.refuse_infinite(where, numbers, row)
    return numbers


def _decode_pictures(where: str, contents: list[bytes | None], row: int) -> np.ndarray:
    """Decode images stored in the table, uint8 [rows, channels, height, width].

    Paths in the table are not opened. Raises UserError.
    """
    images: list[np.ndarray] = []
    for number, content in enumerate(contents, start=row):
        place = f"{where}: row {number}"
        if content is None:
            raise UserError(
                f"{place} contains no image data; paths of image files are not opened"
            )
        image = pictures.decode(io.BytesIO(content), place, "PNG", "JPEG", mode=None)
        if images and image.shape != images[0].shape:
            raise UserError(
                f"{place} has the shape {image.shape}, row {row} {images[0].shape}; all images "
                "must have the same shape"
            )
        images.append(image)
    return np.stack(images)


def _find_index_columns(schema: Any) -> set[str]:
    """Return the columns that pandas wrote as index of the rows."""
    index = {name for name in schema.names if features.is_index(name)}
    for entry in _read_description(schema, "index_columns"):
        # pandas describes an index that only counts rows by a dictionary, not a column
        if isinstance(entry, str):
            index.add(entry)
    return index


def _find_categorical(schema: Any) -> set[str]:
    """Return the columns whose values are declared as categories."""
    is_dictionary = import_pyarrow().types.is_dictionary
    found = {field.name for field in schema if is_dictionary(field.type)}
    for entry in _read_description(schema, "columns"):
        if isinstance(entry, dict) and entry.get("pandas_type") == "categorical":
            found.add(str(entry.get("field_name")))
    return found


def _read_description(schema: Any, key: str) -> list[Any]:
    """Return a list from pandas' description of the columns; empty without it."""
    try:
        described = untrusted_files.parsed((schema.metadata or {}).get(PANDAS, b"{}"))
    except Damaged:
        return []  # the columns can be read without this description
    listed = described.get(key) if isinstance(described, dict) else None
    return listed if isinstance(listed, list) else []


def _read_class_names(file: File) -> dict[str, list[str]]:
    """Return the class names by column from Hugging Face's metadata. Raises UserError."""
    metadata = (file.table.schema.metadata or {}).get(HUGGING_FACE)
    if metadata is None:
        return {}
    found = {}
    with untrusted_files.refuse_unreadable(
        file.path, "Hugging Face's description of the columns"
    ):
        described = untrusted_files.parsed(metadata)["info"]["features"]
        for column, feature in described.items():
            if (names := _find_names(feature)) is not None:
                found[column] = untrusted_files.checked(names, list[str])
    for column, names in found.items():
        checks.refuse_repeated(f"{file.path}: column '{column}'", "class", names)
    return found


def _find_names(feature: Any) -> Any:
    """Return the names of a ClassLabel, which may be nested in lists; None without one."""
    if isinstance(feature, list):
        return _find_names(feature[0])
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") == "ClassLabel":
        return feature["names"]
    return _find_names(feature.get("feature"))


def _refuse_other(
    first: File, file: File, what: str, describe: Callable[[File], set[str]]
) -> None:
    """Raise UserError if two files differ.

    Args:
        first: First file.
        file: Other file.
        what: Name of what the files must have in common.
        describe: Function that lists it for a file.
    """
    expected, found = describe(first), describe(file)
    if found != expected:
        own = wording.list_names(sorted(found - expected)) or "none"
        others = wording.list_names(sorted(expected - found)) or "none"
        raise UserError(
            f"{file.path}: its {what} differ from those of {first.path}: {own} instead of "
            f"{others}; all files must have the same ones"
        )


def _describe_classes(file: File) -> set[str]:
    """Return the class names of each column with names."""
    classes = _read_class_names(file)
    return {f"{column}: {', '.join(names)}" for column, names in classes.items()}


def _describe_columns(file: File) -> set[str]:
    """Return names and types of a file's columns without its index.

    Types are those of the decoded values. pandas writes an index only if rows were
    selected.
    """
    arrow = import_pyarrow()
    schema = file.table.schema
    index = _find_index_columns(schema)
    columns = set()
    for field in schema:
        kind = field.type
        if isinstance(kind, arrow.BaseExtensionType):
            kind = kind.storage_type
        if arrow.types.is_dictionary(kind):
            kind = kind.value_type
        if kind in (arrow.large_string(), arrow.string_view()):
            kind = arrow.string()
        if field.name not in index:
            columns.add(f"{field.name} ({kind})")
    return columns


def refuse_missing_shards(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError if a name such as train-00000-of-00002 announces more files than
    exist.
    """
    shards: dict[tuple[str, str], set[str]] = {}
    for name in names:
        if found := SHARD.fullmatch(name):
            shards.setdefault((found[1], found[2]), set()).add(name)
    for (_, total), present in shards.items():
        if len(present) < int(total):
            raise UserError(
                f"{folder}: {min(present)} is one of {int(total):,} files, but the folder "
                f"has only {len(present):,}"
            )
