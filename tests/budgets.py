"""Measure the amount of code that a reader of the package has to read.

``python tests/budgets.py`` prints the size of each room and compares the totals with
the limits in ``budgets.json``. ``test_budgets.py`` fails if a number is larger, and
``--lower`` writes measured numbers that are smaller. A commit may raise the totals of
tokens, and says by how much and for what; the other limits only decrease.

Tokens are Python's tokens without comments and docstrings. A file counts as run if a
function or a class body in it runs. ``wording.py`` prints the places of the last
numbers.
"""

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import wording

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "hpcfl"
LIMITS = Path(__file__).with_name("budgets.json")
LAYOUT_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
SMALL_RUN: dict[str, Any] = {
    "rounds": 2,
    "data": {"dataset": "digits"},
    "partition": {"clients": 4},
    "model": {"hidden": [8]},
    "method": {"name": "fedavg"},
    "runtime": {"device": "cpu"},
}
# Commands that read results and must not import torch.
READERS = {
    "show": "sys.argv = ['hpcfl', 'show', FOLDER, '--json']; main()",
    "table": "sys.argv = ['hpcfl', 'table', FOLDER]; main()",
    "status": "sys.argv = ['hpcfl', 'status', FOLDER]; main()",
    "load": "import hpcfl; hpcfl.load(FOLDER)",
    "--help": "sys.argv = ['hpcfl', '--help']; main()",
}
READER = """
import sys
from contextlib import suppress
from hpcfl.__main__ import main
FOLDER, importing = {folder!r}, []
for name, action in {actions!r}.items():
    with suppress(SystemExit):
        exec(action)
    if "torch" in sys.modules:
        importing.append(name)
print(*importing, file=sys.stderr)
"""


@dataclass
class Weight:
    """Numbers of tokens, code lines and comprehensions of several files."""

    tokens: int = 0
    lines: int = 0
    comprehensions: int = 0

    def add(self, other: "Weight"):
        self.tokens += other.tokens
        self.lines += other.lines
        self.comprehensions += other.comprehensions


def weigh(text: str) -> Weight:
    """Count a file's tokens and code lines without comments and docstrings."""
    nodes = list(ast.walk(ast.parse(text)))
    docstring_lines = find_docstring_lines(nodes)
    tokens, lines = 0, set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in LAYOUT_TOKENS or token.start[0] in docstring_lines:
            continue
        tokens += 1
        lines.update(range(token.start[0], token.end[0] + 1))
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in nodes)
    return Weight(tokens, len(lines), comprehensions)


def find_docstring_lines(nodes: list[ast.AST]) -> set[int]:
    """Return the line numbers of all docstrings."""
    lines = set[int]()
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or 0) + 1))
    return lines


def weigh_folder(folder: Path) -> Weight:
    """Return the size of all Python files below a folder."""
    total = Weight()
    for path in sorted(folder.rglob("*.py")):
        total.add(weigh(path.read_text(encoding="utf-8")))
    return total


def weigh_rooms() -> dict[str, Weight]:
    """Return the size of each room of the package, and of the files outside rooms."""
    rooms: dict[str, Weight] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        room = place.parts[0] if len(place.parts) > 1 else "(root)"
        weight = weigh(path.read_text(encoding="utf-8"))
        rooms.setdefault(room, Weight()).add(weight)
    return rooms


def is_own(file: str) -> bool:
    """Return whether a file belongs to the package."""
    return file.startswith(f"{PACKAGE}/")


def list_running_files(out: str) -> set[str]:
    """Run a small federation in ``out`` and return the files whose functions ran."""
    files: set[str] = set()

    def note_file(frame: FrameType, event: str, argument):
        code = frame.f_code
        called = event == "call" and code.co_name != "<module>"
        if called and is_own(code.co_filename):
            files.add(code.co_filename.removeprefix(f"{PACKAGE}/"))

    sys.setprofile(note_file)
    import hpcfl

    hpcfl.run(SMALL_RUN, out=out, progress=False)
    sys.setprofile(None)
    return files


def measure_depth(out: str) -> int:
    """Run a small federation in ``out`` and return the largest number of the package's
    frames above a loss.
    """
    import watched_method

    import hpcfl

    config = SMALL_RUN | {"method": {"name": "watched_method:Watched"}}
    hpcfl.run(config, out=out, progress=False)
    depths = []
    for files in watched_method.Watched.stacks:
        depths.append(sum(map(is_own, files)))
    return max(depths)


def trace_runs() -> dict[str, int]:
    """Run small federations and return the numbers of files and frames that they use."""
    with TemporaryDirectory() as folder:
        files = list_running_files(f"{folder}/run")
        rooms = Counter(file.split("/")[0] for file in files)
        print("\nfiles that run:", dict(rooms.most_common()))
        readers = find_torch_imports(f"{folder}/run")
        print("commands that import torch:", readers)
        depth = measure_depth(f"{folder}/watched")
    return {
        "files in a small run": len(files),
        "own frames above a loss": depth,
        "commands that import torch": len(readers),
    }


def find_torch_imports(folder: str) -> list[str]:
    """Run the commands of READERS one after the other in a new process, and return
    those after which torch is imported.
    """
    program = READER.format(folder=folder, actions=READERS)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1].split()


def measure(rooms: dict[str, Weight]) -> dict[str, float]:
    """Return all limited numbers by name, and the sizes of the rooms."""
    package, tests = Weight(), weigh_folder(PROJECT / "tests")
    for weight in rooms.values():
        package.add(weight)
    return {
        "tokens of hpcfl": package.tokens,
        "tokens of tests": tests.tokens,
        "tokens a code line": round(package.tokens / package.lines, 2),
        "comprehensions in 1,000 lines": round(
            1000 * package.comprehensions / package.lines, 1
        ),
        **trace_runs(),
        **{name: len(places) for name, places in wording.list_all().items()},
    }


def find_excess(measured: dict[str, float], limits: dict[str, float]) -> list[str]:
    """Return a line for each number above its limit."""
    return [
        f"{name}: {measured[name]:,} is more than {limit:,}"
        for name, limit in limits.items()
        if measured[name] > limit
    ]


def main():
    """Print all numbers; with ``--lower`` write the numbers that decreased."""
    rooms = weigh_rooms()
    for room, weight in sorted(rooms.items(), key=lambda item: -item[1].tokens):
        print(f"{room:14} {weight.tokens:8,} tokens {weight.lines:7,} lines")
    measured = measure(rooms)
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else measured
    print()
    for name, value in measured.items():
        print(f"{name:32} {value:10,}  (limit {limits[name]:,})")
    if "--lower" in sys.argv[1:]:
        lowered = {name: min(measured[name], limits[name]) for name in measured}
        LIMITS.write_text(json.dumps(lowered, indent=1) + "\n")
    excess = find_excess(measured, limits)
    if excess:
        sys.exit("\n".join(excess))


if __name__ == "__main__":
    main()
