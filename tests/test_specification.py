"""References to the specification name existing sections and items, in code, comments,
documents and the specification itself.

References have the forms ``methods-1.md §5, item 9``, ``protocols.md D2`` and
``heterogeneity.md H3``. Within the specification references to the same page name only
sections and items.
"""

import re
from itertools import chain
from pathlib import Path

import pytest
from places import ROOT

BOOKS = [
    ROOT / "hpcfl" / path
    for path in (
        "methods/methods-1.md",
        "methods/methods-2.md",
        "methods/methods-3.md",
        "models/adapters.md",
        "data/protocols.md",
        "data/heterogeneity.md",
        "clock/time.md",
    )
]
KINDS = {".py", ".md", ".toml", ".sh", ".sbatch"}

HEADING = re.compile(r"^##+ (\d+(?:\.\d+)?|[A-Z]\d*)\.? ", re.M)
ITEM = re.compile(r"^(\d+)\. |\*\*(\d+)(?:–(\d+))?\.\*\*", re.M)
CITED = re.compile(
    r"(?P<book>protocols|heterogeneity)\.md (?P<parts>[A-Z]\d*\b(?:(?:, | and | to )[A-Z]\d*\b)*)"
    r"|(?P<file>[\w-]+\.md)"
    r"|§(?P<section>\d+(?:\.\d+)?)(?:,\s+item (?P<its>\d+))?|\bitem (?P<item>\d+)\b"
)
IN_PARTS = {
    "protocols.md": "B-F",
    "heterogeneity.md": "DH",
}  # letters of their parts


def pieces(pattern, text):
    """Return the matches of a pattern in a text, each with the text up to the next
    match.
    """
    marks = list(pattern.finditer(text))
    ends = [mark.start() for mark in marks] + [len(text)]
    return [
        (mark, text[mark.end() : end])
        for mark, end in zip(marks, ends[1:], strict=True)
    ]


def items(section):
    """Yield the items of a section and their lettered parts, ``10`` and ``10a``;
    ``**2–3.**`` is two items.
    """
    for mark, body in pieces(ITEM, section):
        first, last = int(mark[1] or mark[2]), int(mark[3] or mark[2] or mark[1])
        for number in range(first, last + 1):
            yield from [
                f"{number}",
                *(f"{number}{letter}" for letter in re.findall(r"\(([a-z])[),]", body)),
            ]


TEXTS = {path.name: path.read_text() for path in BOOKS}
SECTIONS = [
    (name, mark[1], body)
    for name, text in TEXTS.items()
    for mark, body in pieces(HEADING, text)
]
THERE = {
    (name, section, item)
    for name, section, body in SECTIONS
    for item in (None, *items(body))
}


def cited(text, file=None, section=None):
    """Yield (file, section, item) of every reference in a text; ``file`` and
    ``section`` are the text's own.
    """
    for mark in CITED.finditer(text):
        if mark["parts"]:
            yield from (
                (f"{mark['book']}.md", part, None)
                for part in re.findall(r"[A-Z]\d*", mark["parts"])
            )
        elif mark["file"]:
            file = mark["file"]
        else:
            yield file, mark["section"] or section, mark["its"] or mark["item"]


def written():
    """Return path and text of all code and documents except this file and the
    specification.
    """
    folders = ("hpcfl", "tests", "launch", "slurm", "results")
    paths = chain(
        [ROOT / "README.md"], *((ROOT / folder).rglob("*") for folder in folders)
    )
    skipped = {*BOOKS, Path(__file__)}
    return [
        (str(path.relative_to(ROOT)), path.read_text())
        for path in paths
        if path.suffix in KINDS and path not in skipped
    ]


@pytest.mark.slow
def test_references_lead_to_a_section_and_item():
    found = [(path, reference) for path, text in written() for reference in cited(text)]
    assert len(found) > 70
    assert [
        (path, reference) for path, reference in found if reference not in THERE
    ] == []


def test_references_within_the_specification_lead_to_a_section_and_item():
    found = [
        (name, section, reference)
        for name, section, body in SECTIONS
        for reference in cited(body, name, section)
    ]
    parts = [
        (book, part, None)
        for book, letters in IN_PARTS.items()
        for part in re.findall(rf"\b[{letters}]\d+\b", TEXTS[book])
    ]
    assert len(found) > 10 and len(parts) > 20
    assert [one for one in found if one[2] not in THERE] + [
        part for part in parts if part not in THERE
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "(methods-1.md §99)",
        "methods-1.md §5,\nitem 11",
        "methods-4.md §5",
        "§5",
        "item 9",
        "protocols.md B4, D8",
        "protocols.md A",
        "heterogeneity.md H9, H10",
    ],
)
def test_a_dead_reference_is_found(text):
    assert not THERE.issuperset(cited(text))
