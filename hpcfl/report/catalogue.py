"""The built-in methods, models, partition schemes, shifts, selections, scores and data
sets, as their files describe themselves.

Reading that off the code means importing torch, so it is kept in ``catalogue.json``. A
file that is not in it yet is read when it is asked for. ``python -m
hpcfl.report.catalogue`` writes ``catalogue.json`` and the
tables of methods and data sets anew; tests say when that is due.
"""

import inspect
import json
from collections.abc import Callable
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
    "scores": "evaluation.scores",
    "datasets": "data.dataset",
}
COMMAND = "written by python -m hpcfl.report.catalogue"
# Pages with a table of all there is of a kind, and the lines above its first entry.
PAGES = {
    "datasets": PACKAGE / "data" / "README.md",
    "methods": PACKAGE / "methods" / "README.md",
}
TABLES = {
    "datasets": "| name | | licence |\n|---|---|---|",
    "methods": "| name | paper | idea |\n|---|---|---|",
}


def entries(kind: str) -> list[Entry]:
    """Return the entries of one of PACKAGES, in the order of names.

    Each has ``name`` and ``description``; methods, models, partitions, shifts
    and selections have ``keys``, their own keys as JSON schemas by name, of shifts with
    those of all kinds.

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
    special: Callable[[str, Any], Entry] = {
        "methods": _method,
        "models": _model,
        "partitions": _partition,
        "shifts": _shift,
        "selections": _selection,
        "scores": _score,
        "datasets": _dataset,
    }[kind]
    summary = inspect.cleandoc(text or "").partition("\n\n")[0]
    return {
        "name": name,
        "description": " ".join(summary.split()),
        **special(name, plugin),
    }


def _method(name: str, plugin: Any) -> Entry:
    own = _properties(plugin)
    own.pop("name")
    return {
        "reference": plugin.reference,
        "family": plugin.family,
        "primary": plugin.primary,
        "keys": _untitled(own),
    }


def _model(name: str, plugin: Any) -> Entry:
    from hpcfl.experiment.plugin_keys import fields_class

    return {"keys": _untitled(_properties(fields_class("model", {"name": name})))}


def _partition(name: str, plugin: Any) -> Entry:
    from hpcfl.experiment.sections import Partition

    return {"keys": _beside(plugin, Partition)}


def _selection(name: str, plugin: Any) -> Entry:
    from hpcfl.experiment.sections import Participation

    return {"keys": _beside(plugin, Participation)}


def _beside(plugin: Any, section: Any) -> Keys:
    """Return a plugin's own keys, without those of the section that it extends."""
    own = {
        key: schema
        for key, schema in _properties(plugin).items()
        if key not in section.model_fields
    }
    return _untitled(own)


def _shift(name: str, plugin: Any) -> Entry:
    return {"keys": _untitled(_properties(plugin))}


def _score(name: str, plugin: Any) -> Entry:
    return {
        "unit": plugin.unit,
        "better": plugin.better,
        "summaries": list(plugin.summaries),
        "by_default": name in (*measures.BY_DEFAULT, *measures.ON_SHARED_TEST),
    }


def _dataset(name: str, plugin: Any) -> Entry:
    from hpcfl.experiment.plugin_keys import fields_class

    if plugin.built_in:
        files = "built in"
    elif plugin.own_file:
        files = "your own: data.file"
    elif plugin.home:
        files = f"by hand: {plugin.home}"
    else:
        files = f"download: hpcfl data download {name} --root DIR"
    return {
        "built_in": plugin.built_in,
        "own_file": plugin.own_file,
        "files": files,
        "looked_for": plugin.looked_for,
        "licence": plugin.licence,
        "keys": _untitled(_properties(fields_class("data", {"dataset": name}))),
    }


def _properties(section: Any) -> Keys:
    properties: Keys = section.model_json_schema().get("properties", {})
    return properties


def _untitled(properties: Keys) -> Keys:
    """JSON schemas of keys without the titles that pydantic makes of their names."""
    return {
        key: {part: value for part, value in schema.items() if part != "title"}
        for key, schema in properties.items()
    }


if __name__ == "__main__":
    content = text()
    STORED.write_text(content, encoding="utf-8")
    catalogue = json.loads(content)
    for kind, path in PAGES.items():
        page = with_table(kind, path.read_text(encoding="utf-8"), catalogue[kind])
        path.write_text(page, encoding="utf-8")
