"""A figure of matplotlib as inline SVG, for a page.

One engine draws the figures in files and those of the page. Libraries whose script
travels inside the page were weighed against it: Plotly 7.1 adds 4.8 MB to every page
and 40 MB to an installation, Bokeh 3.9 adds 1.3 and 25 MB, Altair 6.3 with Vega-Lite
0.8 and, with the package that embeds it, 94 MB. Matplotlib is there already and adds no
script; its SVG follows the page's text colour by style sheet. What a page can do beyond
a picture is a matter of attributes: all that is drawn of a method has its ``data-row``,
all that is drawn of a client its ``data-client``, and a short script highlights what
has the same.
"""

import re
from collections.abc import Callable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from hpcfl.report.plots.base import ROW

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}"
REFERENCE = re.compile(r"(?<=#)[\w.-]+")  # to an id, in href="#…" and in url(#…)
DECIMALS = re.compile(r"\d+\.\d+")


def inline(figure: bytes, name: str, shown: Callable[[str], str]) -> str:
    """An SVG as part of a page.

    It loses what HTML has no need of: the declaration, metadata, name spaces, ids that
    nothing refers to, digits beyond a tenth of a unit, and styles that all children of
    a group repeat. An address, by which matplotlib lets each dot of many have a text,
    becomes ``data-client`` and ``data-value``.

    Args:
        figure: What matplotlib wrote.
        name: Begins the ids of this figure, which no other on the page may have.
        shown: What the page makes of a text that may come from a file.
    """
    svg = ElementTree.fromstring(figure)
    for element in svg.iter():
        element.tag = element.tag.removeprefix(SVG)
        element.tail = None
        if element.tag != "text":
            element.text = None
        address = element.attrib.pop(XLINK + "href", None)
        if address is not None:
            element.set("href", address)
    _remove(svg, "metadata")
    _remove(svg, "style")
    _name_owners(svg, shown)
    _rename(svg, name)
    for element in svg.iter():
        _shorten(element, shown)
    svg.attrib = {"viewBox": svg.attrib["viewBox"], "aria-hidden": "true"}
    return ElementTree.tostring(svg, encoding="unicode")


def _remove(svg: Element, tag: str) -> None:
    """Remove all elements with this tag."""
    for parent in list(svg.iter()):
        for child in parent.findall(tag):
            parent.remove(child)


def _name_owners(svg: Element, shown: Callable[[str], str]) -> None:
    """Say of rows, and of dots and lines of a client, whose they are."""
    for group in list(svg.iter("g")):
        name = group.get("id", "")
        if name.startswith(ROW):
            group.set("data-row", shown(name.removeprefix(ROW)))
        for position, child in enumerate(list(group)):
            if child.tag != "a":
                continue
            [drawn] = child
            value, _, client = child.attrib["href"].partition(" ")
            drawn.set("data-client", shown(client))
            if value:
                drawn.set("data-value", value)
            group[position] = drawn


def _rename(svg: Element, name: str) -> None:
    """Give short ids, unique on the page, to what is referred to, and none to others."""
    names: dict[str, str] = {}
    for element in svg.iter():
        for key in ("href", "clip-path"):
            if key not in element.attrib:
                continue
            address = element.attrib[key]
            [old] = REFERENCE.findall(address)
            new = names.setdefault(old, f"{name}-{len(names)}")
            element.set(key, address.replace(old, new))
    for element in svg.iter():
        old = element.attrib.pop("id", "")
        if old in names:
            element.set("id", names[old])


def _shorten(element: Element, shown: Callable[[str], str]) -> None:
    """Round coordinates, and write once what all children of a group repeat."""
    for key in ("d", "x", "y", "transform"):
        if key in element.attrib:
            rounded = DECIMALS.sub(_tenths, element.attrib[key])
            element.set(key, " ".join(rounded.split()))
    if element.tag == "text":
        element.text = shown(element.text or "")
    marks = [child for child in element if child.tag in ("use", "path")]
    styles = {mark.get("style", "") for mark in marks}
    if element.tag == "g" and len(marks) > 2 and len(styles) == 1:
        element.set("style", styles.pop())
        for mark in marks:
            mark.attrib.pop("style", None)


def _tenths(number: re.Match[str]) -> str:
    """A decimal number, rounded to a tenth of a unit."""
    return f"{float(number[0]):.1f}"
