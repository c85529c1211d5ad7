"""The documentation site, of README, guide, maps, specifications, docstrings and results:
``python launch/site/build.py [FOLDER]`` writes it to ``build/site``.

It needs ``pip install ".[docs]"`` and no network. Whatever Sphinx warns of is an error,
such as a link that leads nowhere.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import written
from sphinx.cmd.build import build_main

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = ("hpcfl", "launch", "results", "slurm", "tests")
LINKED = ("LICENSE", "CITATION.cff")
FIRST = "README"  # the page that all others hang on
# A page stands in the first chapter of which a pattern fits its path.
CHAPTERS = {
    "Use": [
        "hpcfl/GUIDE.md",
        "launch/notebooks/*.md",
        "slurm/README.md",
        "hpcfl/data/names.md",
    ],
    "Reference": [
        "hpcfl/methods/README.md",
        "hpcfl/data/README.md",
        "api/running.rst",
        "api/*.rst",
    ],
    "Results": ["gallery.md", "results/*/README.md", "launch/*/README.md"],
    "Specifications": ["hpcfl/methods/methods-*.md", "hpcfl/*/[!R]*.md"],
    "Project": ["[!R]*.md", "hpcfl/README.md", "hpcfl/*/README.md", "tests/README.md"],
    "More": ["results/**/*.md", "launch/**/*.md", "hpcfl/**/*.md"],
}


def build(folder: Path) -> int:
    """Write the site into a folder.

    Returns:
        What Sphinx ends with: 0 where nothing is wrong.
    """
    with tempfile.TemporaryDirectory() as place:
        pages = Path(place)
        collect(pages)
        code = make(pages, folder)
    if code == 0:
        shutil.copy(folder / f"{FIRST}.html", folder / "index.html")
    return code


def make(pages: Path, folder: Path) -> int:
    """Let Sphinx make a site of a folder of pages, with every warning an error."""
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", str(HERE)]
    return build_main([*options, str(pages), str(folder)])


def collect(pages: Path) -> None:
    """Put all pages together in an empty folder, with the files that they link to."""
    left_out = shutil.ignore_patterns("__pycache__")
    for folder in [*(ROOT / name for name in FOLDERS), HERE / "api"]:
        shutil.copytree(folder, pages / folder.name, ignore=left_out)
    for path in [*ROOT.glob("*.md"), *(ROOT / name for name in LINKED)]:
        shutil.copy(path, pages)
    written.methods(pages)
    written.gallery(pages)
    written.notebooks(pages)
    first = pages / f"{FIRST}.md"
    text = first.read_text(encoding="utf-8")
    first.write_text(text + contents(pages), encoding="utf-8")


def contents(pages: Path) -> str:
    """The contents of the site by chapter, which every page has in its margin."""
    named = {FIRST}
    parts = []
    for chapter, patterns in CHAPTERS.items():
        found = []
        for pattern in patterns:
            for path in sorted(pages.glob(pattern)):
                name = str(path.relative_to(pages).with_suffix(""))
                if name not in named:
                    named.add(name)
                    found.append(name)
        options = ["```{toctree}", ":hidden:", f":caption: {chapter}", ""]
        parts.append("\n".join(["", *options, *found, "```", ""]))
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "site"))
