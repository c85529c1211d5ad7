"""Build the documentation site: ``python launch/site/build.py [FOLDER]`` writes it to
``build/site``.

The pages are the Markdown files in this folder, the documents of the other folders,
and the pages from ``generated.py``. It needs ``pip install ".[docs]"`` and no
network. Every warning of Sphinx is an error, such as a link to a missing page.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import generated
from sphinx.cmd.build import build_main

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = ("hpcfl", "launch", "results", "slurm", "tests")
PAGES = ("start", "tutorials", "howto", "reference", "explanation")
LINKED = ("LICENSE", "CITATION.cff")
FIRST = "index"  # the page that contains the table of contents
# Chapters of the sidebar: optional titles with paths, or patterns of further paths. A
# page belongs to the first chapter that names it.
CHAPTERS: dict[str, tuple[str, ...]] = {
    "Get started": ("start/install", "start/first-run", "start/results"),
    "Tutorials": (
        "tutorials/own-method",
        "tutorials/own-data",
        "tutorials/own-model",
        "tutorials/paper",
        "tutorials/cluster",
        "tutorials/privacy",
        "tutorials/from-pfllib",
        "tutorials/from-flower",
        "tutorials/*",
    ),
    "How-to": (
        "howto/*",
        "Notebook, a first run: launch/notebooks/first_run",
        "Notebook, your own method: launch/notebooks/own_method",
        "Notebook, from results to a paper: launch/notebooks/to_paper",
    ),
    "Reference": (
        "reference/keys",
        "reference/commands",
        "All methods: hpcfl/methods/README",
        "All data sets: hpcfl/data/README",
        "reference/metrics",
        "reference/files",
        "reference/hooks",
        "Cluster profiles and sites: slurm/README",
        "Python API, run and read: reference/api/running",
        "Python API, methods: reference/api/methods",
        "Python API, scores, data, trackers: reference/api/plugins",
        "Names in PFLlib and FL-bench: hpcfl/data/names",
        "reference/faq",
        "reference/glossary",
        "reference/*",
    ),
    "Explanation": (
        "explanation/round",
        "explanation/exactness",
        "explanation/statistics",
        "explanation/privacy",
        "explanation/comparison",
        "explanation/*",
        "Specification: methods, part 1: hpcfl/methods/methods-1",
        "Specification: methods, part 2: hpcfl/methods/methods-2",
        "Specification: methods, part 3: hpcfl/methods/methods-3",
        "Specification: settings of the papers: hpcfl/data/protocols",
        "Specification: shifts and data sets: hpcfl/data/heterogeneity",
        "Specification: virtual time: hpcfl/clock/time",
        "Specification: privacy, compression, attacks: hpcfl/updates/updates",
        "Specification: adapters: hpcfl/models/adapters",
    ),
    "Results": (
        "gallery",
        "Quickstart: results/quickstart/README",
        "52 tuned methods: results/tuned/README",
        "Speed: results/benchmarks/README",
        "Comparison with PFLlib: results/pfllib/README",
        "Distribution shifts: results/shifts/README",
        "Asynchronous servers: results/asynchronous/README",
        "Compressed uploads: results/bits/README",
        "Clients under attack: results/attacks/README",
        "Private clients: results/privacy/README",
        "Private samples in silos: results/silos/README",
        "DiversiFed's tables: results/diversifed/README",
        "Numbers of the papers' tables: results/counts/README",
        "Figures of the papers: results/figures/README",
        "MNIST, ten rounds: results/mnist/README",
        "Review of the methods: results/findings/README",
        "Random faults: results/campaign/README",
        "Experiment files of the papers: launch/papers/README",
    ),
    "Project": (
        "Read me: README",
        "CONTRIBUTING",
        "CHANGELOG",
        "SECURITY",
        "Map of the package: hpcfl/README",
        "Map of the tests: tests/README",
    ),
}


def build(folder: Path) -> int:
    """Write the site into a folder and return the exit code of Sphinx."""
    with tempfile.TemporaryDirectory() as place:
        pages = Path(place)
        collect(pages)
        return make(pages, folder)


def make(pages: Path, folder: Path) -> int:
    """Build a site from a folder of pages. Every warning is an error."""
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", str(HERE)]
    return build_main([*options, str(pages), str(folder)])


def collect(pages: Path) -> None:
    """Copy all pages and the files that they link to into an empty folder."""
    left_out = shutil.ignore_patterns("__pycache__", "site")
    for folder in [
        *(ROOT / name for name in FOLDERS),
        *(HERE / name for name in PAGES),
    ]:
        shutil.copytree(folder, pages / folder.name, ignore=left_out)
    for path in [*ROOT.glob("*.md"), *(ROOT / name for name in LINKED)]:
        shutil.copy(path, pages)
    generated.write_methods(pages)
    generated.write_keys(pages)
    generated.write_commands(pages)
    generated.write_gallery(pages)
    generated.write_notebooks(pages)
    text = (HERE / f"{FIRST}.md").read_text(encoding="utf-8")
    (pages / f"{FIRST}.md").write_text(text + list_contents(pages), encoding="utf-8")


def list_contents(pages: Path) -> str:
    """Return the table of contents by chapter. Detailed results are hidden."""
    listed: set[str] = set()
    parts = []
    for chapter, entries in CHAPTERS.items():
        lines = []
        for entry in entries:
            title, _, pattern = entry.rpartition(": ")
            for name in find_pages(pages, pattern):
                if name not in listed:
                    listed.add(name)
                    titled = (
                        f"{title} <{name}>" if title and "*" not in pattern else name
                    )
                    lines.append(titled)
        parts.append(_contents(chapter, lines))
    return "".join(parts)


def find_pages(pages: Path, pattern: str) -> list[str]:
    """Return the names of the pages that match a pattern, without suffixes."""
    found = {
        str(path.relative_to(pages).with_suffix(""))
        for ending in ("md", "rst")
        for path in pages.glob(f"{pattern}.{ending}")
    }
    return sorted(found)


def _contents(chapter: str, lines: list[str]) -> str:
    options = ["```{toctree}", ":hidden:", f":caption: {chapter}", ""]
    return "\n".join(["", *options, *lines, "```", ""])


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "site"))
