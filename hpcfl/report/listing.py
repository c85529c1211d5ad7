"""Output of ``hpcfl methods``, ``models``, ``partitions``, ``shifts``, ``selections``,
``transforms``, ``rules``, ``attacks``, ``scores`` and ``datasets``.
"""

import json
from typing import Any

from rich import box
from rich.table import Table

from hpcfl.errors import UserError, suggest
from hpcfl.report import catalogue
from hpcfl.report.catalogue import Entry
from hpcfl.report.text import WIDEST, make_console

BETWEEN = 2  # spaces between the columns of an overview
BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minItems": "at least",
    "maxItems": "at most",
}

# By kind the columns of the overview after the name, as fields of the entries.
COLUMNS = {
    "methods": ("reference", "family"),
    "scores": ("unit", "better", "description"),
    "datasets": ("files", "licence", "description"),
}


def show(kind: str, name: str | None) -> None:
    """Print a line for each entry of a kind, or the whole entry called ``name``.

    Lines are cut at the width of a terminal; other outputs get whole lines.

    Raises:
        UserError: If the name is unknown.
    """
    console = make_console(WIDEST, markup=False)
    if name is None:
        console.print(make_overview(kind))
        console.print(f"hpcfl {kind} NAME shows one of them in full.")
    else:
        for part in list_details(find_entry(kind, name)):
            console.print(part)


def find_entry(kind: str, name: str) -> Entry:
    """Find the entry called ``name``: a built-in plugin or a user's ``module:object``.

    Raises:
        UserError: If there is none.
    """
    if ":" in name:
        return catalogue.describe_own(kind, name)
    known = {entry["name"]: entry for entry in catalogue.list_entries(kind)}
    # Names of methods have hyphens, names of scores underscores.
    for wanted in (name, name.replace("-", "_"), name.replace("_", "-")):
        if wanted in known:
            return known[wanted]
    raise UserError(f"unknown name '{name}' for hpcfl {kind}{suggest(name, known)}")


def make_overview(kind: str) -> Table:
    """Return a table with a line for each entry of a kind."""
    entries = catalogue.list_entries(kind)
    table = Table(
        box=None, padding=(0, BETWEEN, 0, 0), pad_edge=False, header_style="bold"
    )
    columns = COLUMNS.get(kind, ("description",))
    for heading in (kind.removesuffix("s"), *columns):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    table.columns[0].min_width = max(len(entry["name"]) for entry in entries)
    for entry in entries:
        files = entry.get("files", "").partition(": ")[0]
        shown = entry | {"files": files}
        table.add_row(*(shown[column] for column in ("name", *columns)))
    return table


def list_details(entry: Entry) -> list[str | Table]:
    """Return the description of one entry as texts and a table of its keys."""
    reference = f" ({entry['reference']})" if entry.get("reference") else ""
    title = f"{entry['name']}{reference}: {entry['description']}"
    parts: list[str | Table] = [title.removesuffix(": ")]
    if entry.get("primary"):
        parts.append(f"Primary metric: column {entry['primary']}.")
    for what in ("unit", "better", "summaries", "files", "licence"):
        if entry.get(what):
            parts.append(f"{what}: {_write_value(entry[what])}")
    if entry.get("looked_for"):
        place = "data.root, else below $HPCFL_DATA"
        if entry["own_file"]:
            place = "data.file"
        lines = [f"looked for below {place}:", *entry["looked_for"]]
        parts.append("\n    ".join(lines))
    if entry.get("keys"):
        table = Table("key", "default", "values", "meaning", box=box.SIMPLE_HEAD)
        for key, schema in entry["keys"].items():
            table.add_row(
                key,
                describe_default(schema),
                describe_values(schema),
                schema.get("description", ""),
            )
        parts.append(table)
    return parts


def describe_default(schema: dict[str, Any]) -> str:
    """Return the default of a key as written in an experiment file."""
    return _write_value(schema["default"]) if "default" in schema else "–"


def describe_values(schema: dict[str, Any]) -> str:
    """Describe the values that a JSON schema allows, such as ``all | output |
    integer > 0``.
    """
    if "anyOf" in schema:
        return " | ".join(
            describe_values(option)
            for option in schema["anyOf"]
            if option.get("type") != "null"
        )
    if "$ref" in schema:
        return "table"
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {describe_values(schema['items'])}"
    bounds = [
        f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema
    ]
    return f"{schema.get('type', 'any')} {', '.join(bounds)}".rstrip()


def _write_value(value: Any) -> str:
    """Format a value as written in an experiment file."""
    if isinstance(value, str):
        return value
    return "not set" if value is None else json.dumps(value)
