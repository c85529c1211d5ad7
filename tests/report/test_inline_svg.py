"""What a page gets of a figure: whole, short, and without anything but its drawing."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from hpcfl.report import figures, inline_svg
from hpcfl.report.plots.base import literal, row_id

HOSTILE = "</svg><script>alert(1)</script>\" onload='x' $a$ &lt; /home/me/runs"


@pytest.fixture
def svg():
    """``svg(label)``: a figure of a line, and of two dots that are clients'."""

    def make(label: str, name: str = "f0") -> str:
        with figures.house_style():
            figure = Figure(figsize=(4, 2))
            axes = figure.subplots()
            axes.plot([1, 2], [3, 4], marker="o", gid=row_id(label))
            urls = [f"0.5 client 3, {label}", f"0.75 client 4, {label}"]
            axes.scatter(
                [1, 2],
                [3, 4],
                urls=urls,
                gid=row_id(label),
                clip_on=False,
            )
            axes.set_title(literal(label))
            content = figures.as_svg(figure)
        return inline_svg.inline(content, name, str.upper)

    return make


def elements(svg):
    return list(ElementTree.fromstring(svg).iter())


def test_rows_and_clients_are_named_on_what_is_drawn_of_them(svg):
    drawn = elements(svg("fedavg"))
    rows = [one for one in drawn if "data-row" in one.attrib]
    assert [one.get("data-row") for one in rows] == ["FEDAVG", "FEDAVG"]
    dots = [one for one in drawn if "data-client" in one.attrib]
    assert [
        (one.tag, one.get("data-client"), one.get("data-value")) for one in dots
    ] == [
        ("use", "CLIENT 3, FEDAVG", "0.5"),
        ("use", "CLIENT 4, FEDAVG", "0.75"),
    ]
    assert "FEDAVG" in [one.text for one in drawn if one.tag == "text"]


def test_a_foreign_text_stays_a_text(svg):
    harmless, hostile = elements(svg("fedavg")), elements(svg(HOSTILE))
    outline = [(one.tag, sorted(one.attrib)) for one in harmless]
    assert [(one.tag, sorted(one.attrib)) for one in hostile] == outline
    assert HOSTILE.upper() in [one.text for one in hostile]
    assert HOSTILE.upper() in [one.get("data-row") for one in hostile]


def test_ids_are_those_that_are_referred_to_and_differ_from_those_of_other_figures(svg):
    one, other = svg("fedavg", "f0"), svg("fedavg", "f1")
    ids = re.findall(r' id="([^"]*)"', one)
    referred = re.findall(r"(?:href=\"|url\()#([\w-]+)", one)
    assert len(ids) == len(set(ids)) and set(ids) == set(referred)
    assert not set(ids) & set(re.findall(r' id="([^"]*)"', other))


def test_it_is_short_and_has_no_declarations(svg):
    text = svg("fedavg")
    assert text.startswith("<svg viewBox=") and text.endswith("</svg>")
    assert not re.search(r"xml|<style|<metadata|<a |\.\d\d+ ", text)
