"""Tables that a script of this folder writes into a page, between two marks."""

from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "results" / "benchmarks"
END = "<!-- end of table -->\n"


def replace(page: Path, script: str, text: str):
    """Replace the text between the marks of this ``script`` in a page."""
    begin = f"<!-- table: written by tests/benchmarks/{script} -->\n"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(END)
    page.write_text(before + begin + text + END + after, encoding="utf-8")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with an empty line before and after it."""
    lines = [" | ".join(cells) for cells in (heads, *rows)]
    lines = [f"| {line} |" for line in lines]
    lines.insert(1, "|---" * len(heads) + "|")
    return "\n".join(["", *lines, "", ""])
