"""Find names and sentences that a reader would have to learn first.

``python tests/wording.py`` prints every place. ``budgets.py`` counts them; their limits
only decrease.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "hpcfl"
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "hpcfl",
    "launch",
    "slurm",
    "results",
    "tests",
)
# A text that begins with one of these words is a clause without a subject.
HEADLESS = re.compile(
    r"(What|Who|Whose|Whoever|Which|Of|That|Where|Nobody|Somebody|Everybody"
    r"|How|Whether|Why)\b"
)
# A description of an argument that begins with one of these words lacks its noun.
NOUNLESS = re.compile(r"(what|who|whose|which|of|that|where|how|why)\b", re.IGNORECASE)
DESCRIPTION = re.compile(r"(?:^ *|[.;] )[a-z_*`][\w*`, ]*: (\w.*)", re.MULTILINE)
# Folders of Python code outside the package whose sentences are checked, too.
CODE = ("hpcfl", "launch", "slurm")
# Words without meaning as names of files or functions.
BANNED = {
    "at",
    "blame",
    "called",
    "closing",
    "few",
    "foreign",
    "hearing",
    "kept",
    "moments",
    "named",
    "of",
    "on",
    "ownership",
    "presence",
    "reading",
    "regular",
    "said",
    "standing",
    "to",
    "told",
    "waves",
}
# Words without a subject, and words that make programs people, in names of tests.
BANNED_IN_TESTS = {
    "beside",
    "everybody",
    "heard",
    "hears",
    "nobody",
    "said",
    "says",
    "somebody",
    "stand",
    "stands",
    "tells",
    "told",
    "whatever",
    "who",
    "whoever",
    "whom",
    "whose",
}
HEADING = re.compile(r"#+ +(.*)")


@cache
def list_modules(*folders: str) -> list[tuple[Path, list[ast.AST]]]:
    """Return the path and the nodes of the syntax tree of each Python file below
    folders.
    """
    modules = []
    for folder in folders:
        for path in sorted((PROJECT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            modules.append((path, list(ast.walk(tree))))
    return modules


def find_headless(texts: Iterator[tuple[str, str]]) -> list[str]:
    """Return a line for each text that begins with a headless clause.

    texts: place and text of each.
    """
    found = []
    for place, text in texts:
        line = text.partition("\n")[0]
        if HEADLESS.match(line) and not line.endswith("?"):
            found.append(f"{place}: {line[:70]}")
    return found


def list_docstrings() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each docstring of CODE."""
    for path, nodes in list_modules(*CODE):
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                line = getattr(node, "lineno", 1)
                if text:
                    yield f"{shorten(path)}:{line}", text


def list_nounless() -> list[str]:
    """Return the place of each description of an argument that begins without a noun."""
    found = []
    for place, docstring in list_docstrings():
        for text in DESCRIPTION.findall(docstring):
            if NOUNLESS.match(text):
                found.append(f"{place}: {text[:70]}")
    return found


def list_comments() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each comment on a separate line."""
    for path, _ in list_modules(*CODE):
        follows_comment = False
        source = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                if not follows_comment:
                    yield f"{shorten(path)}:{token.start[0]}", token.string.lstrip("# ")
                follows_comment = True
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                follows_comment = False


def list_headings_and_cells() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each heading and table cell of the documents."""
    for name in DOCUMENTS:
        path = PROJECT / name
        files = sorted(path.rglob("*.md")) if path.is_dir() else [path]
        for file in files:
            lines = file.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, 1):
                place = f"{shorten(file)}:{number}"
                if heading := HEADING.match(line):
                    yield place, heading[1]
                elif line.startswith("|"):
                    for cell in line.strip("|").split("|"):
                        yield place, cell.strip()


def list_banned_names() -> list[str]:
    """Return the place of each file and function with a meaningless name."""
    found = []
    for path, nodes in list_modules(*CODE, "tests"):
        if path.stem.strip("_") in BANNED:
            found.append(shorten(path))
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and is_banned(node.name):
                found.append(f"{shorten(path)}:{node.lineno}: {node.name}")
    return found


def is_banned(name: str) -> bool:
    """Return whether a function's name is meaningless, or a test's has a banned word."""
    if name.startswith("test_"):
        return not BANNED_IN_TESTS.isdisjoint(name.split("_"))
    return name.strip("_") in BANNED


def list_docstrings_without_verb() -> list[str]:
    """Return the place of each function's docstring without an imperative at its
    beginning.
    """
    command = [sys.executable, "-m", "ruff", "check", "--select", "D401"]
    command += [
        "--output-format",
        "concise",
        "--quiet",
        *(str(PROJECT / name) for name in CODE),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if " D401 " in line]


def list_private_uses() -> list[str]:
    """Return each import of a private name of another room, and each such attribute."""
    found = []
    for path, nodes in list_modules(*CODE):
        if not path.is_relative_to(PACKAGE):
            continue
        own = path.relative_to(PACKAGE).parts[0]
        strangers = set[str]()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and is_of_other_room(node, own):
                names = [alias.name for alias in node.names]
                strangers.update(alias.asname or alias.name for alias in node.names)
                if any(map(is_private, [*(node.module or "").split("."), *names])):
                    found.append(f"{shorten(path)}:{node.lineno}: {ast.unparse(node)}")
        for node in nodes:
            if not isinstance(node, ast.Attribute) or not is_private(node.attr):
                continue
            if isinstance(node.value, ast.Name) and node.value.id in strangers:
                found.append(f"{shorten(path)}:{node.lineno}: {ast.unparse(node)}")
    return found


def is_of_other_room(node: ast.ImportFrom, own: str) -> bool:
    """Return whether an import takes names from another room than ``own``."""
    parts = (node.module or "").split(".")
    return parts[0] == "hpcfl" and parts[1:2] != [own]


def is_private(name: str) -> bool:
    """Return whether a name is private to its module."""
    return name.startswith("_") and not name.startswith("__")


def shorten(path: Path) -> str:
    """Return a path relative to the project."""
    return str(path.relative_to(PROJECT))


def list_all() -> dict[str, list[str]]:
    """Return all places to rewrite, by the name of the number in ``budgets.json``."""
    return {
        "headless docstrings": find_headless(list_docstrings()),
        "headless comments": find_headless(list_comments()),
        "headless headings and cells": find_headless(list_headings_and_cells()),
        "descriptions without noun": list_nounless(),
        "docstrings without imperative": list_docstrings_without_verb(),
        "banned names": list_banned_names(),
        "private names used by other rooms": list_private_uses(),
    }


if __name__ == "__main__":
    for name, places in list_all().items():
        print(f"{name}: {len(places)}")
        print("".join(f"  {place}\n" for place in places), end="")
