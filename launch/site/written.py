"""The pages of the site that are made from other things than texts: a page for each
method, the gallery, and the notebooks.
"""

import inspect
import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

from hpcfl.experiment import plugins
from hpcfl.report import catalogue, citation, listing
from hpcfl.report.catalogue import Entry

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^(?=##+ )", re.MULTILINE)
TITLE = re.compile(r"^# (.+)", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
COMMAND = re.compile(r"(?:^    .+\n)+", re.MULTILINE)


def methods(pages: Path) -> None:
    """A page for each built-in method."""
    (pages / "methods").mkdir()
    for entry in catalogue.entries("methods"):
        page = pages / "methods" / f"{entry['name']}.md"
        page.write_text(_method(entry), encoding="utf-8")


def gallery(pages: Path) -> None:
    """All figures of the results, each with the first command of its folder's README, in
    which NAME is the figure's.
    """
    parts = ["# Gallery"]
    for readme in sorted((ROOT / "results").glob("*/README.md")):
        text = readme.read_text(encoding="utf-8")
        figures = sorted(readme.parent.glob("*.png"))
        if figures:
            parts += [f"## {TITLE.search(text)[1]}", f"[More](/{_page(readme)})"]
        for figure in figures:
            command = dedent(COMMAND.search(text)[0]).replace("NAME", figure.stem)
            parts += [f"`{_page(figure)}`", f"![{figure.stem}](/{_page(figure)})"]
            parts.append(_fenced("bash", command))
    (pages / "gallery.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def notebooks(pages: Path) -> None:
    """The notebooks as pages beside them, without what their cells show."""
    for path in sorted((pages / "launch" / "notebooks").glob("*.ipynb")):
        parts = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "code":
                # what begins with % or ! is no Python
                text = _fenced("{code-block} python", f":force:\n\n{text}")
            parts.append(text)
        parts.append(f"This page is the notebook [{path.name}]({path.name}).")
        page = path.with_suffix(".md")
        page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _method(entry: Entry) -> str:
    """The page of a method."""
    name = entry["name"]
    title = _title_of(entry)
    plugin = plugins.find("hpcfl.methods", "method.name", name)
    module = plugin.__module__
    file = f"{module.replace('.', '/')}.py"
    parts = [
        "---\norphan: true\n---",  # fifty lines in every page's margin help nobody
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
    if name != "local":  # a baseline of nobody's
        parts += ["## To cite", _fenced("bibtex", citation.of_method(name))]
    return "\n\n".join(parts) + "\n"


def _title_of(entry: Entry) -> str:
    """Return the paper's name of a method, which begins its description."""
    return str(entry["description"].partition(":")[0])


def _keys(keys: dict[str, dict[str, Any]]) -> str:
    """A table of a method's own keys."""
    rows = []
    for key, schema in keys.items():
        tried = ""
        if "search" in schema:
            numbers = ", ".join(f"{number:g}" for number in schema["search"])
            tried = f"{numbers} ({schema['source']})"
        default, values = listing.default(schema), listing.values(schema)
        meaning = schema.get("description", "")
        rows.append([f"`{key}`", f"`{default}`", values, tried, meaning])
    return _table(["key", "default", "values", "tried where tuned", "meaning"], rows)


def _specification(title: str, docstring: str) -> list[str]:
    """The section of the specification that is about a method, called ``title``: the last
    one whose heading has its name, else the first that its docstring cites.
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
    """The lines of the tables in results/ whose first cell is a method of these names."""
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
    """The method that a row of a table is about, where it is about one."""
    first = row.split("|")[1].strip().strip("`")
    return first.partition(",")[0].casefold()


def _page(path: Path) -> Path:
    """Return the place of a repository file on the site."""
    return path.relative_to(ROOT)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _fenced(kind: str, text: str) -> str:
    return f"```{kind}\n{text}\n```"
