"""Columns, types and class names that the files of a table state about themselves."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcfl.data.checks import refuse_repeated
from hpcfl.data.sources import _identifiers
from hpcfl.errors import UserError
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged

# Keys of a schema's metadata, JSON: Hugging Face's kinds of columns, and pandas' index.
HUGGING_FACE, PANDAS = b"huggingface", b"pandas"
SHARD = re.compile(r"(.*)-\d+-of-(\d+)\b.*")  # such as train-00000-of-00002.parquet


def index_columns(schema: Any) -> set[str]:
    """Return the columns that pandas wrote as an index of the rows."""
    index = {name for name in schema.names if _identifiers.is_index(name)}
    for entry in _described_by_pandas(schema, "index_columns"):
        # an index that only counts the rows is described by a table, not by a column
        if isinstance(entry, str):
            index.add(entry)
    return index


def categorical_columns(schema: Any) -> set[str]:
    """Return the columns whose values are declared as categories."""
    import pyarrow

    found = {field.name for field in schema if pyarrow.types.is_dictionary(field.type)}
    for entry in _described_by_pandas(schema, "columns"):
        if isinstance(entry, dict) and entry.get("pandas_type") == "categorical":
            found.add(str(entry.get("field_name")))
    return found


def _described_by_pandas(schema: Any, key: str) -> list[Any]:
    """Return a list in pandas' description of its columns; empty without one."""
    try:
        described = untrusted_files.parsed((schema.metadata or {}).get(PANDAS, b"{}"))
    except Damaged:
        return []  # nothing else in the file depends on this description
    listed = described.get(key) if isinstance(described, dict) else None
    return listed if isinstance(listed, list) else []


def class_names(path: Path, schema: Any) -> dict[str, list[str]]:
    """Return the names of classes by column, as Hugging Face describes them.

    Raises UserError.
    """
    metadata = (schema.metadata or {}).get(HUGGING_FACE)
    if metadata is None:
        return {}
    found = {}
    try:
        described = untrusted_files.parsed(metadata)["info"]["features"]
        for column, feature in described.items():
            names = _names_in(feature)
            if names is not None:
                found[column] = untrusted_files.checked(names, list[str])
    except (Damaged, AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: its description of the columns cannot be read "
            f"({atomic.reason(error)})"
        ) from None
    for column, names in found.items():
        refuse_repeated(f"{path}: column '{column}'", "class", names)
    return found


def _names_in(feature: Any) -> Any:
    """Return the names of a ClassLabel, also of one in lists."""
    while isinstance(feature, dict) and "names" not in feature:
        feature = feature.get("feature")
    if isinstance(feature, list):
        return _names_in(feature[0]) if feature else None
    return None if feature is None else feature["names"]


def refuse_other_columns(first: Path, schema: Any, path: Path, other: Any) -> None:
    """Raise UserError where two files have other columns or types; the order may differ.

    Index columns are not compared: pandas writes one only where rows were chosen.
    """
    names = set(schema.names) - index_columns(schema)
    others = set(other.names) - index_columns(other)
    if names != others:
        raise UserError(
            f"{path} has the columns {', '.join(other.names)}; {first} has "
            f"{', '.join(schema.names)}; all files must have the same columns"
        )
    for name in sorted(names):
        kind = _kind(schema.field(name).type)
        found = _kind(other.field(name).type)
        if kind != found:
            raise UserError(
                f"{path}: column '{name}' holds {found}, in {first} {kind}; all files must have "
                "the same columns of the same types"
            )


def _kind(arrow_type: Any) -> str:
    """Return the type of a column's values, however they are stored."""
    import pyarrow

    if isinstance(arrow_type, pyarrow.BaseExtensionType):
        arrow_type = arrow_type.storage_type
    if pyarrow.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if arrow_type in (pyarrow.large_string(), pyarrow.string_view()):
        arrow_type = pyarrow.string()
    return str(arrow_type)


def refuse_missing_shards(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError where names of files say that there are more of them."""
    shards: dict[tuple[str, str], set[str]] = {}
    for name in names:
        if found := SHARD.fullmatch(name):
            shards.setdefault((found[1], found[2]), set()).add(name)
    for (_, total), present in shards.items():
        if len(present) < int(total):
            raise UserError(
                f"{folder}: {min(present)} is one of {int(total):,} files, of which "
                f"{len(present):,} are there"
            )
