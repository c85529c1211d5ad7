"""Generate pages of the site from code and results: methods, configuration keys,
commands, gallery, notebooks.
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args

import click

from hpcfl.cli import cli
from hpcfl.experiment import plugins
from hpcfl.experiment.config import Config
from hpcfl.experiment.sections import Section
from hpcfl.report import catalogue, citation, listing
from hpcfl.report.catalogue import Entry

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^(?=##+ )", re.MULTILINE)
TITLE = re.compile(r"^# (.+)", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
COMMAND = re.compile(r"(?:^    .+\n)+", re.MULTILINE)


# Sections with keys of plugins, and the kind of the plugin.
PLUGIN_SECTIONS = {
    "data": "datasets",
    "partition": "partitions",
    "shift": "shifts",
    "model": "models",
    "method": "methods",
    "participation": "selections",
    "compression": "transforms",
    "aggregation": "rules",
    "attack": "attacks",
}
KEYS = """# Configuration keys

This page lists every key of an experiment file, generated from the schema.
`hpcfl check FILE.toml --all` prints the keys of one experiment with their values.
Methods have [pages of their own](/hpcfl/methods/README.md).
"""
COMMANDS = """# Command line

This page lists every command and option, generated from the program. `hpcfl COMMAND --help` prints the same.
[Complete commands with the tab key](../howto/shell-completion.md) helps to type them.
"""
NEXT = "Next: [{0}]({1}), [Frequently asked questions](faq.md)."


def write_methods(pages: Path) -> None:
    """Write a page for each built-in method."""
    (pages / "methods").mkdir()
    for entry in catalogue.list_entries("methods"):
        page = pages / "methods" / f"{entry['name']}.md"
        page.write_text(_method(entry), encoding="utf-8")


def write_keys(pages: Path) -> None:
    """Write the reference of all keys, with a table for each section and plugin."""
    parts = [KEYS, "## Top level"]
    sections = {}
    schema = Config.model_json_schema()
    for name, field in Config.model_fields.items():
        section = _section(field.annotation)
        if section is not None:
            sections[name] = section
    top = {
        key: keys for key, keys in schema["properties"].items() if key not in sections
    }
    parts.append(_keys(top))
    for name, section in sections.items():
        heading = f"[[{name}]]" if name in plugins.LISTS else f"[{name}]"
        shared = section.model_json_schema()["properties"]
        shared.pop("options", None)
        parts += [f"## {heading}", _keys(shared)]
        if name in PLUGIN_SECTIONS and name != "method":
            parts += _plugin_keys(PLUGIN_SECTIONS[name], shared)
    parts.append(NEXT.format("Command line", "commands.md"))
    (pages / "reference" / "keys.md").write_text("\n\n".join(parts), encoding="utf-8")


def _section(annotation: Any) -> type[Section] | None:
    """Return the section class of a field, alone or in a list; None for other fields."""
    for kind in (annotation, *get_args(annotation)):
        for inner in (kind, *get_args(kind)):
            if inspect.isclass(inner) and issubclass(inner, Section):
                return inner
    return None


def _plugin_keys(kind: str, shared: dict[str, Any]) -> list[str]:
    """Return a heading and a table for each plugin of a kind that has its own keys."""
    parts = []
    for entry in catalogue.list_entries(kind):
        own = {
            key: schema
            for key, schema in entry.get("keys", {}).items()
            if key not in shared
        }
        if own:
            named_by = catalogue.NAMED_BY[kind]
            parts += [f'### `{named_by} = "{entry["name"]}"`', _keys(own)]
    return parts


def write_commands(pages: Path) -> None:
    """Write the reference of all commands and their options."""
    parts = [COMMANDS]
    for command, context in _commands(cli, click.Context(cli, info_name="hpcfl")):
        usage = " ".join(command.collect_usage_pieces(context))
        parts += [
            f"## {context.command_path}",
            _fenced("text", f"{context.command_path} {usage}"),
            inspect.cleandoc(command.help or ""),
        ]
        rows = []
        for option in command.params:
            record = option.get_help_record(context)
            if record is not None and isinstance(option, click.Option):
                rows.append([f"`{record[0]}`", record[1]])
        if rows:
            parts.append(_table(["option", "meaning"], rows))
    parts.append(NEXT.format("Configuration keys", "keys.md"))
    page = pages / "reference" / "commands.md"
    page.write_text("\n\n".join(parts), encoding="utf-8")


def _commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield each command of a group and its subgroups, with its context."""
    for name, command in sorted(group.commands.items()):
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        elif not command.hidden:
            yield command, inner


def write_gallery(pages: Path) -> None:
    """Write a page with all figures of the results.

    Each figure has the first command of its folder's README, with the figure's name in
    place of NAME.
    """
    parts = [
        "# Gallery of figures",
        "This page shows the figures in `results`, each with its command.",
    ]
    for readme in sorted((ROOT / "results").glob("*/README.md")):
        text = readme.read_text(encoding="utf-8")
        figures = sorted(readme.parent.glob("*.png"))
        if figures and COMMAND.search(text):
            parts += [f"## {TITLE.search(text)[1]}", f"[More](/{_page(readme)})"]
        for figure in figures:
            command = dedent(COMMAND.search(text)[0]).replace("NAME", figure.stem)
            parts += [f"`{_page(figure)}`", f"![{figure.stem}](/{_page(figure)})"]
            parts.append(_fenced("bash", command))
    (pages / "gallery.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def write_notebooks(pages: Path) -> None:
    """Write the notebooks as pages in the same folder, without the output of cells."""
    for path in sorted((pages / "launch" / "notebooks").glob("*.ipynb")):
        parts = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "code":
                # Lines that begin with % or ! are not Python.
                text = _fenced("{code-block} python", f":force:\n\n{text}")
            parts.append(text)
        parts.append(f"This page is the notebook [{path.name}]({path.name}).")
        page = path.with_suffix(".md")
        page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _method(entry: Entry) -> str:
    """Return the page of a method."""
    name = entry["name"]
    title = _title_of(entry)
    plugin = plugins.find("hpcfl.methods", "method.name", name)
    module = plugin.__module__
    file = f"{module.replace('.', '/')}.py"
    parts = [
        "---\norphan: true\n---",  # keeps fifty entries out of the sidebar
        f"# {title}",
        _fenced("{eval-rst}", f".. automodule:: {module}\n   :no-members:"),
        f'`method.name = "{name}"`: {entry["family"]}; its result is read in the '
        f"column `{entry['primary']}`.",
        "## State and messages",
        _fenced("{eval-rst}", f".. autoclass:: {module}.{plugin.__name__}"),
        "## Keys",
        _keys(entry["keys"]),
        *_specification(title, inspect.getdoc(inspect.getmodule(plugin))),
        *_results({name.casefold(), title.casefold()}),
        "## Source",
        f"`{file}`",
        _fenced(f"{{literalinclude}} /{file}", ":language: python"),
    ]
    if name != "local":  # a baseline without a paper
        parts += ["## To cite", _fenced("bibtex", citation.cite_method(name))]
    return "\n\n".join(parts) + "\n"


def _title_of(entry: Entry) -> str:
    """Return the paper's name of a method, the beginning of its description."""
    return str(entry["description"].partition(":")[0])


def _keys(keys: dict[str, dict[str, Any]]) -> str:
    """Return a table of keys, with tuned values if a key has some."""
    rows = []
    searched = any("search" in schema for schema in keys.values())
    for key, schema in keys.items():
        tried = ""
        if "search" in schema:
            numbers = ", ".join(f"{number:g}" for number in schema["search"])
            tried = f"{numbers} ({schema['source']})"
        default, values = (
            listing.describe_default(schema),
            listing.describe_values(schema),
        )
        meaning = schema.get("description", "")
        row = [f"`{key}`", f"`{default}`", values, meaning]
        rows.append([*row, tried] if searched else row)
    head = ["key", "default", "values", "meaning"]
    return _table([*head, "tried in tuning"] if searched else head, rows)


def _specification(title: str, docstring: str) -> list[str]:
    """Return the section of the specification on a method.

    It is the last section whose heading contains ``title``, else the first section that
    the docstring cites.

    Args:
        title: Name of the method in its paper.
        docstring: Docstring of the method's module.
    """
    named = re.compile(rf"(?<![\w-]){re.escape(title)}(?![\w-])")
    about = None
    cited = re.search(r"(methods-\d)\.md\s§(\d+(?:\.\d+)?)", docstring)
    for path in sorted((ROOT / "hpcfl" / "methods").glob("methods-*.md")):
        for section in SECTION.split(path.read_text(encoding="utf-8")):
            heading, _, text = section.partition("\n")
            number = re.match(r"##+ (\d+(?:\.\d+)?)", heading)
            if number is None:
                continue
            is_cited = cited and (path.stem, number[1]) == (cited[1], cited[2])
            if named.search(heading) or (is_cited and about is None):
                about = f"From {path.name} §{number[1]}:", text.strip()
    return [] if about is None else ["## Specification", *about]


def _results(names: set[str]) -> list[str]:
    """Return rows of tables in results/ whose first cell is one of the names."""
    parts = []
    for path in sorted((ROOT / "results").glob("*/*.md")):
        text = path.read_text(encoding="utf-8")
        title = TITLE.search(text)
        for table in TABLE.findall(text):
            head, rule, *rows = table.splitlines()
            own = [row for row in rows if _method_in(row) in names]
            if own:
                parts += [
                    f"[{title[1]}](/{_page(path)}):",
                    "\n".join([head, rule, *own]),
                ]
    return ["## In the results", *parts] if parts else []


def _method_in(row: str) -> str:
    """Return the method that a row of a table names in its first cell."""
    first = row.split("|")[1].strip().strip("`")
    return first.partition(",")[0].casefold()


def _page(path: Path) -> Path:
    """Return the path of a repository file on the site."""
    return path.relative_to(ROOT)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _fenced(kind: str, text: str) -> str:
    return f"```{kind}\n{text}\n```"
