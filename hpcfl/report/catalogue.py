"""Entries of the built-in methods, models, partition schemes, shifts, selections,
transforms, rules, attacks, scores and data sets.

Entries are read from the plugins' docstrings and fields. Importing the plugins imports
torch, so the entries are stored in ``catalogue.json``. A plugin that the file lacks is
imported when its entry is requested. ``python -m hpcfl.report.catalogue`` rewrites
``catalogue.json`` and the tables of methods and data sets; tests fail if they are
outdated.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from hpcfl.experiment import measures, plugins, user_code

STORED = Path(__file__).with_suffix(".json")
PACKAGE = Path(__file__).parents[1]
Keys = dict[str, dict[str, Any]]  # JSON schemas by key
# An entry that JSON can store: ``name``, ``description`` and the fields of its kind.
Entry = dict[str, Any]

# By kind the section that selects a plugin.
SECTIONS = {
    "methods": "method",
    "models": "model",
    "partitions": "partition",
    "shifts": "shift",
    "selections": "participation",
    "transforms": "compression",
    "rules": "aggregation",
    "attacks": "attack",
    "datasets": "data",
}
# By kind the package of the plugins, and the configuration key that selects one.
PACKAGES, NAMED_BY = {}, {}
for _kind, _section in SECTIONS.items():
    _key, PACKAGES[_kind], _ = plugins.PLUGINS[_section]
    NAMED_BY[_kind] = f"{_section}.{_key}"
PACKAGES["scores"] = measures.PACKAGE
NAMED_BY["scores"] = "evaluation.scores"
# By kind the attributes of a plugin that its entry contains.
ATTRIBUTES = {
    "methods": ("reference", "family", "primary"),
    "scores": ("unit", "better", "summaries"),
    "datasets": ("built_in", "own_file", "looked_for", "licence"),
}
COMMAND = "written by python -m hpcfl.report.catalogue"
# Pages that contain the table of a kind, and the header of each table.
PAGES = {
    "datasets": PACKAGE / "data" / "README.md",
    "methods": PACKAGE / "methods" / "README.md",
}
TABLES = {
    "datasets": "| name | content | licence |\n|---|---|---|",
    "methods": "| name | paper | idea |\n|---|---|---|",
}


def list_entries(kind: str) -> list[Entry]:
    """Return the entries of a kind, sorted by name.

    Every entry has ``name`` and ``description``. Entries of methods, models, partitions,
    shifts, selections, transforms, rules and attacks also have ``keys``: JSON schemas
    of the plugin's own keys by name. For shifts, transforms, rules and attacks ``keys``
    includes the keys that all plugins of the kind share. Further fields:

    * methods: ``reference``, ``family``, ``primary`` (column of the primary metric);
    * scores: ``unit``, ``better``, ``summaries``, ``by_default``;
    * datasets: ``built_in``, ``own_file``, ``licence``, ``keys``, ``files`` (source of
      the files), ``looked_for`` (paths below ``data.root``, or below ``data.file`` with
      ``own_file``).

    Args:
        kind: Key of PACKAGES.
    """
    stored = json.loads(STORED.read_text(encoding="utf-8"))[kind]
    by_name = {entry["name"]: entry for entry in stored}
    in_order = []
    for name in plugins.list_names(PACKAGES[kind]):
        in_order.append(
            by_name[name] if name in by_name else _describe_built_in(kind, name)
        )
    return in_order


def describe_all(kind: str) -> list[Entry]:
    """Return the built-in entries of a kind, read from the code."""
    return [
        _describe_built_in(kind, name) for name in plugins.list_names(PACKAGES[kind])
    ]


@user_code.locate_errors()
def describe_own(kind: str, name: str) -> Entry:
    """Import a user's plugin and return its entry.

    Args:
        kind: Key of PACKAGES.
        name: Plugin as ``module:object``.

    Raises:
        UserError: If the import fails or the object is no such plugin.
    """
    plugin = plugins.find(PACKAGES[kind], NAMED_BY[kind], name)
    return _make_entry(kind, name, plugin, plugin.__doc__)


def write_catalogue() -> str:
    """Return the content of ``catalogue.json``."""
    catalogue = {kind: describe_all(kind) for kind in PACKAGES}
    return json.dumps(catalogue, indent=1, ensure_ascii=False) + "\n"


def replace_table(kind: str, page: str, listed: list[Entry]) -> str:
    """Return a page with its table of a kind replaced.

    Args:
        kind: Key of PAGES.
        page: Text of the page.
        listed: Entries of the new table.
    """
    begin, end = f"<!-- {kind}: {COMMAND} -->\n", f"<!-- end of {kind} -->"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    rows = [_write_row(kind, entry) for entry in listed]
    table = "\n".join([TABLES[kind], *rows])
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def _write_row(kind: str, entry: Entry) -> str:
    """Return a table row. A method's description begins with its name and a colon."""
    text = entry["description"].removesuffix(".")
    if kind == "datasets":
        return f"| `{entry['name']}` | {text} | {entry['licence']} |"
    idea = text.partition(": ")[2]
    return f"| `{entry['name']}` | {entry['reference']} | {idea} |"


def _describe_built_in(kind: str, name: str) -> Entry:
    plugin, text = plugins.find_built_in(PACKAGES[kind], name)
    return _make_entry(kind, name, plugin, text)


def _make_entry(kind: str, name: str, plugin: Any, text: str | None) -> Entry:
    """Return the entry of a plugin.

    Args:
        kind: Key of PACKAGES.
        name: Name of the plugin.
        plugin: Plugin object.
        text: Docstring that describes the plugin.
    """
    summary = inspect.cleandoc(text or "").partition("\n\n")[0]
    entry: Entry = {"name": name, "description": " ".join(summary.split())}
    for attribute in ATTRIBUTES.get(kind, ()):
        entry[attribute] = getattr(plugin, attribute)
    if kind == "scores":
        by_default = (*measures.BY_DEFAULT, *measures.ON_SHARED_TEST)
        return entry | {"by_default": name in by_default}
    if kind == "datasets":
        entry["files"] = _describe_files(name, plugin)
    return entry | {"keys": _read_keys(kind, name)}


def _describe_files(name: str, plugin: Any) -> str:
    """Return the source of a data set's files."""
    if plugin.built_in:
        return "built in"
    if plugin.own_file:
        return "your own: data.file"
    if plugin.home:
        return f"by hand: {plugin.home}"
    return f"download: hpcfl data download {name} --root DIR"


def _read_keys(kind: str, name: str) -> Keys:
    """Return the own keys of a plugin as JSON schemas, without pydantic's titles."""
    from hpcfl.experiment.plugins import find_plugin_class
    from hpcfl.experiment.sections import Participation, Partition

    common = {
        "methods": {"name"},
        "partitions": set(Partition.model_fields),
        "selections": set(Participation.model_fields),
        "transforms": {"kind"},
        "rules": {"rule"},
        "attacks": {"kind"},
    }.get(kind, set())
    place, _, selector = NAMED_BY[kind].partition(".")
    schema = find_plugin_class(place, {selector: name}).model_json_schema()
    keys = {}
    for key, of_key in schema.get("properties", {}).items():
        if key not in common:
            of_key.pop("title", None)
            keys[key] = of_key
    return keys


if __name__ == "__main__":
    content = write_catalogue()
    STORED.write_text(content, encoding="utf-8")
    catalogue = json.loads(content)
    for kind, path in PAGES.items():
        page = replace_table(kind, path.read_text(encoding="utf-8"), catalogue[kind])
        path.write_text(page, encoding="utf-8")
