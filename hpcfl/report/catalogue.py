"""The built-in methods, models, partition schemes, shifts, selections, transforms,
rules, attacks, scores and data sets, as their files describe themselves.

Reading that off the code means importing torch, so it is kept in ``catalogue.json``. A
file that is not in it yet is read when it is asked for. ``python -m
hpcfl.report.catalogue`` writes ``catalogue.json`` and the
tables of methods and data sets anew; tests say when that is due.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from hpcfl.experiment import measures, plugins, user_code

STORED = Path(__file__).with_suffix(".json")
PACKAGE = Path(__file__).parents[1]
Keys = dict[str, dict[str, Any]]  # JSON schemas by key
# JSON-able: ``name``, ``description``, and what a kind has besides.
Entry = dict[str, Any]

PACKAGES = {
    "methods": "hpcfl.methods",
    "models": "hpcfl.models",
    "partitions": "hpcfl.data.partitions",
    "shifts": "hpcfl.data.shifts",
    "selections": "hpcfl.selection",
    "transforms": "hpcfl.updates.transforms",
    "rules": "hpcfl.updates.rules",
    "attacks": "hpcfl.updates.attacks",
    "scores": "hpcfl.scores",
    "datasets": "hpcfl.data.sources",
}
# The key that names a plugin of this kind in an experiment.
NAMED_BY = {
    "methods": "method.name",
    "models": "model.name",
    "partitions": "partition.scheme",
    "shifts": "shift.kind",
    "selections": "participation.select",
    "transforms": "compression.kind",
    "rules": "aggregation.rule",
    "attacks": "attack.kind",
    "scores": "evaluation.scores",
    "datasets": "data.dataset",
}
# The attributes of a plugin that are in its entry.
ATTRIBUTES = {
    "methods": ("reference", "family", "primary"),
    "scores": ("unit", "better", "summaries"),
    "datasets": ("built_in", "own_file", "looked_for", "licence"),
}
COMMAND = "written by python -m hpcfl.report.catalogue"
# Pages with a table of all there is of a kind, and the lines above its first entry.
PAGES = {
    "datasets": PACKAGE / "data" / "README.md",
    "methods": PACKAGE / "methods" / "README.md",
}
TABLES = {
    "datasets": "| name | content | licence |\n|---|---|---|",
    "methods": "| name | paper | idea |\n|---|---|---|",
}


def entries(kind: str) -> list[Entry]:
    """Return the entries of one of PACKAGES, in the order of names.

    Each has ``name`` and ``description``; methods, models, partitions, shifts,
    selections, transforms, rules and attacks have ``keys``, their own keys as JSON
    schemas by name, of shifts, transforms, rules and attacks with those of all kinds.

    * methods: ``reference``, ``family``, ``primary`` column;
    * scores: ``unit``, ``better``, ``summaries``, ``by_default``;
    * datasets: ``built_in``, ``own_file``; ``files``, where its files come from;
      ``looked_for``, their paths below ``data.root``, or ``data.file`` with
      ``own_file``; ``licence``; ``keys``.
    """
    stored = json.loads(STORED.read_text(encoding="utf-8"))[kind]
    by_name = {entry["name"]: entry for entry in stored}
    in_order = []
    for name in plugins.names(PACKAGES[kind]):
        in_order.append(by_name[name] if name in by_name else _built_in(kind, name))
    return in_order


def described(kind: str) -> list[Entry]:
    """Return the built-in entries of a kind, read off the code."""
    return [_built_in(kind, name) for name in plugins.names(PACKAGES[kind])]


@user_code.locate_errors()
def own(kind: str, name: str) -> Entry:
    """Import a user's own plugin, ``module:object``, and return its entry.

    Raises UserError.
    """
    plugin = plugins.find(PACKAGES[kind], NAMED_BY[kind], name)
    return _entry(kind, name, plugin, plugin.__doc__)


def text() -> str:
    """Return the content of ``catalogue.json``."""
    catalogue = {kind: described(kind) for kind in PACKAGES}
    return json.dumps(catalogue, indent=1, ensure_ascii=False) + "\n"


def with_table(kind: str, page: str, listed: list[Entry]) -> str:
    """Replace the table of a kind in a page by the entries ``listed``."""
    begin, end = f"<!-- {kind}: {COMMAND} -->\n", f"<!-- end of {kind} -->"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    rows = [_row(kind, entry) for entry in listed]
    table = "\n".join([TABLES[kind], *rows])
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def _row(kind: str, entry: Entry) -> str:
    """Return a line of a table; a method's description begins with its name and a colon."""
    text = entry["description"].removesuffix(".")
    if kind == "datasets":
        return f"| `{entry['name']}` | {text} | {entry['licence']} |"
    idea = text.partition(": ")[2]
    return f"| `{entry['name']}` | {entry['reference']} | {idea} |"


def _built_in(kind: str, name: str) -> Entry:
    plugin, text = plugins.find_built_in(PACKAGES[kind], name)
    return _entry(kind, name, plugin, text)


def _entry(kind: str, name: str, plugin: Any, text: str | None) -> Entry:
    """Return the entry of a plugin that ``text``, a docstring, describes."""
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
    """Return where the files of a data set come from."""
    if plugin.built_in:
        return "built in"
    if plugin.own_file:
        return "your own: data.file"
    if plugin.home:
        return f"by hand: {plugin.home}"
    return f"download: hpcfl data download {name} --root DIR"


def _read_keys(kind: str, name: str) -> Keys:
    """Return the own keys of a plugin as JSON schemas, without the titles that pydantic
    makes of their names.
    """
    from hpcfl.experiment.plugins import fields_class
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
    schema = fields_class(place, {selector: name}).model_json_schema()
    keys = {}
    for key, of_key in schema.get("properties", {}).items():
        if key not in common:
            of_key.pop("title", None)
            keys[key] = of_key
    return keys


if __name__ == "__main__":
    content = text()
    STORED.write_text(content, encoding="utf-8")
    catalogue = json.loads(content)
    for kind, path in PAGES.items():
        page = with_table(kind, path.read_text(encoding="utf-8"), catalogue[kind])
        path.write_text(page, encoding="utf-8")
