"""Sphinx configuration for the pages that ``build.py`` collects.

Sphinx with MyST and Furo reads the reStructuredText of the docstrings and builds without
a network.
"""

import re
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

project = "hpcfl"
author = "The hpcfl developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
highlight_language = "none"
smartquotes = False

suppress_warnings = ["toc.not_included"]  # detail pages are linked from result pages

html_theme = "furo"
html_title = "hpcfl"
html_static_path = ["site.css", "site.js"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_search_summary = False  # browsers cannot fetch pages for it from a disk

myst_heading_anchors = 4
autodoc_member_order = "bysource"
napoleon_use_ivar = True
napoleon_use_rtype = False

SPECIFICATION = re.compile(
    r"hpcfl/\w+/(methods-\d|protocols|heterogeneity|time|adapters)"
)
SECTION = re.compile(r"^(?=##+ (\d+(?:\.\d+)?|[A-Z]\d*)\.? )", re.MULTILINE)
NAMED = re.compile(r"^\| `([\w-]+)` \|", re.MULTILINE)
PART = re.compile(r"(?<=\n)# (.+)")
CITED = re.compile(
    r"(?<!`)\b(methods-\d|time|adapters)\.md §(\d+(?:\.\d+)?)"
    r"|(?<!`)\b(protocols|heterogeneity)\.md ([A-Z]\d*)\b"
)

# Links to pages in launch/site; on the site these pages are at the top level.
OWN_PAGE = re.compile(r"\]\((?:\.\./)*launch/site/")
LITERAL = re.compile(r"(``.*?``)", re.DOTALL)
FORMULA = re.compile(r"\||_(?=\W)")


def read_page(app: Sphinx, name: str, content: list[str]) -> None:
    """Add labels to the sections of specifications, and links to them and to methods.

    Headings of a specification's parts become bold text, because they would otherwise be
    separate pages in the table of contents.
    """
    content[0] = OWN_PAGE.sub("](/", content[0])
    if specification := SPECIFICATION.fullmatch(name):
        labelled = rf"({specification[1]}-\1)=\n"
        content[0] = SECTION.sub(labelled, content[0])
        content[0] = PART.sub(r"**\1**", content[0])
    if name == "hpcfl/methods/README":
        content[0] = NAMED.sub(r"| [`\1`](/methods/\1.md) |", content[0])
    content[0] = CITED.sub(lambda cited: f"[{cited[0]}](#{_label(cited)})", content[0])


def read_docstring(
    app: Sphinx, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Add links from a docstring to specifications, and escape formulas.

    Formulas such as |S| and Q_·j would otherwise be read as markup.
    """
    text, code, rest = "\n".join(lines).partition("::\n\n")
    parts = LITERAL.split(text)
    parts[::2] = [FORMULA.sub(r"\\\g<0>", part) for part in parts[::2]]
    text = CITED.sub(
        lambda cited: f":ref:`{cited[0]} <{_label(cited)}>`", "".join(parts)
    )
    lines[:] = f"{text}{code}{rest}".split("\n")


def _label(cited: re.Match[str]) -> str:
    """Return the label of a cited section, as ``read_page`` adds it."""
    return f"{cited[1] or cited[3]}-{cited[2] or cited[4]}"


def shorten(app: Sphinx, kind: str, name: str, thing: Any, *others: Any) -> Any:
    """Remove the signature of a section's class, because its keys are in a table."""
    if isinstance(thing, type) and issubclass(thing, BaseModel):
        return "", None
    return None


def setup(app: Sphinx) -> None:
    """Connect the functions of this module to Sphinx."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring, priority=1)
    app.connect("autodoc-process-signature", shorten)
