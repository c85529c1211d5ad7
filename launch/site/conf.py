"""Configure Sphinx for the pages that ``build.py`` has put together.

Sphinx with MyST and Furo: docstrings here are written in its language, it is
maintained, and it builds without a network.
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

suppress_warnings = ["toc.not_included"]  # details, which their result pages link to

html_theme = "furo"
html_title = "hpcfl"
html_static_path = ["site.css", "site.js"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_search_summary = False  # a browser fetches no page for it from a disk

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

# Pages of the site are in launch/site, and at the top of the site.
OWN_PAGE = re.compile(r"\]\((?:\.\./)*launch/site/")
LITERAL = re.compile(r"(``.*?``)", re.DOTALL)
FORMULA = re.compile(r"\||_(?=\W)")


def read_page(app: Sphinx, name: str, content: list[str]) -> None:
    """Give the sections of a specification labels, and link to them where they are
    cited, and to the pages of methods where they are listed.

    Headings of a specification's parts become bold text, because they would be pages
    of their own in the contents.
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
    """Link to a specification from a docstring, and take |S| and Q_·j for the formulas
    that they are, not for markup.
    """
    text, code, rest = "\n".join(lines).partition("::\n\n")
    parts = LITERAL.split(text)
    parts[::2] = [FORMULA.sub(r"\\\g<0>", part) for part in parts[::2]]
    text = CITED.sub(
        lambda cited: f":ref:`{cited[0]} <{_label(cited)}>`", "".join(parts)
    )
    lines[:] = f"{text}{code}{rest}".split("\n")


def _label(cited: re.Match[str]) -> str:
    """Return the label that ``read_page`` gives to a cited section."""
    return f"{cited[1] or cited[3]}-{cited[2] or cited[4]}"


def shorten(app: Sphinx, kind: str, name: str, thing: Any, *others: Any) -> Any:
    """A section of an experiment without its signature, which is the table of its keys."""
    if isinstance(thing, type) and issubclass(thing, BaseModel):
        return "", None
    return None


def setup(app: Sphinx) -> None:
    """Connect this module to Sphinx, which calls this function."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring, priority=1)
    app.connect("autodoc-process-signature", shorten)
