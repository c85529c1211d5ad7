"""Run rows, each in a separate process until its time limit, and write their results.

The page ``gpu.md`` and ``gpu.json`` are written again after each row; ``log.txt`` has
all output of the rows.
"""

import inspect
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pages
from gpu_rows import Missing, Place, Row

from hpcfl.commands.needs import format_size

OVERTIME = 3.0  # maximal factor of a row's seconds, if other rows leave time
IS_MISSING = 3  # exit code of a row that this machine cannot run
LAST = 8  # lines of the log on the page
FORMAT = 1  # of lanes.json
OF_LANES = (
    "model",
    "precision",
    "lanes",
    "form",
    "seconds_per_sample",
    "peak_bytes",
)


@dataclass
class Result:
    """Result of a row.

    Attributes:
        status: ok, failed, out of time, missing (something is not installed), or left
            out (the hours do not suffice).
        lines: lines of its table, including those before a failure.
        last: last lines that the row printed, unless it is ok.
    """

    title: str
    status: str
    seconds: float = 0.0
    limit: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)
    last: list[str] = field(default_factory=list)


def play_rows(
    rows: list[Row], place: Place, end: float, machine: dict[str, Any]
) -> list[Result]:
    """Run rows one after the other until ``end``, a time of ``time.monotonic``."""
    results = {row.name: Result(row.title, "left out") for row in rows}
    write(place, machine, rows, results)
    for number, row in enumerate(rows):
        left = end - time.monotonic()
        chosen = choose_rows(rows[number:], left)
        if row not in chosen:
            continue
        others = sum(other.seconds for other in chosen) - row.seconds
        limit = min(OVERTIME * row.seconds, left - others)
        results[row.name] = play(row, place, limit)
        write(place, machine, rows, results)
        found = results[row.name]
        print(f"{row.name}: {found.status}, {found.seconds:.0f} s", flush=True)
    return list(results.values())


def choose_rows(rows: list[Row], left: float) -> list[Row]:
    """Return the rows that fit into ``left`` seconds. The last of the least important
    rows are left out first.
    """
    chosen = list(rows)
    while sum(row.seconds for row in chosen) > left:
        lowest = max(row.priority for row in chosen)
        chosen.remove([row for row in chosen if row.priority == lowest][-1])
    return chosen


def play(row: Row, place: Place, limit: float) -> Result:
    """Run a row in a separate process until its limit, in seconds."""
    lines, log = place.work / "lines.jsonl", place.out / "log.txt"
    lines.write_text("")
    log.touch()
    before = log.stat().st_size
    process = multiprocessing.get_context("fork").Process(
        target=play_here, args=(row, place, lines, log)
    )
    begun = time.monotonic()
    process.start()
    found = Result(row.title, "out of time", limit=round(limit))
    try:
        process.join(limit)
        if process.exitcode is not None:
            statuses = {0: "ok", IS_MISSING: "missing"}
            found.status = statuses.get(process.exitcode, "failed")
    finally:  # also after Ctrl-C
        end_session(process)
    found.seconds = round(time.monotonic() - begun, 1)
    complete = lines.read_text().rpartition("\n")[0]
    found.lines = [json.loads(line) for line in complete.splitlines()]
    if found.status != "ok":
        with log.open(errors="replace") as file:
            file.seek(before)
            found.last = file.read().strip().splitlines()[1:][-LAST:]
    return found


def play_here(row: Row, place: Place, lines: Path, log: Path):
    """Run a row in this process, which has a separate session: write its lines, and all
    its output into the log.
    """
    os.setsid()
    sys.stdout = sys.stderr = log.open("a", buffering=1)
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stdout.fileno(), 2)
    print(f"\n== {row.name}", flush=True)
    try:
        with lines.open("a") as file:
            for line in row.function(place, **row.arguments):
                print(json.dumps(line), file=file, flush=True)
    except Missing as missing:
        print(missing, file=sys.stderr)
        sys.exit(IS_MISSING)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def end_session(leader: multiprocessing.process.BaseProcess):
    """End the remaining processes of a row."""
    with suppress(ProcessLookupError):  # none is left, or it is not yet a leader
        os.killpg(leader.pid, signal.SIGKILL)
    leader.kill()
    leader.join()


def write(
    place: Place,
    machine: dict[str, Any],
    rows: list[Row],
    results: dict[str, Result],
):
    """Write the page, the JSON and the table of lanes."""
    found = {name: asdict(result) for name, result in results.items()}
    whole = {"machine": machine, "small": place.is_small, "rows": found}
    (place.out / "gpu.json").write_text(json.dumps(whole, indent=1) + "\n")
    (place.out / "gpu.md").write_text(render(place, machine, rows, results))
    table = {
        "format": FORMAT,
        "device": machine["device"],
        "torch": machine["torch"],
        "rows": find_lanes(list(results.values())),
    }
    (place.out / "lanes.json").write_text(json.dumps(table, indent=1) + "\n")


def find_lanes(results: list[Result]) -> list[dict[str, Any]]:
    """Return the measured lanes, without those that exceeded the memory."""
    lines = [line for found in results for line in found.lines if "form" in line]
    return [
        {name: line[name] for name in OF_LANES}
        for line in lines
        if "fitting" not in line and "error" not in line
    ]


def render(
    place: Place,
    machine: dict[str, Any],
    rows: list[Row],
    results: dict[str, Result],
) -> str:
    """Return the page."""
    size = " at a hundredth of their size, to try the script" * place.is_small
    blocks = [
        f"# hpcfl on {machine['device']}",
        f"Written by tests/benchmarks/gpu.sh, which plays the rows below{size}. Data are random "
        "numbers with CIFAR-10's shape. `gpu.json` beside this page has the same numbers, `log.txt` "
        "all that rows printed, and `lanes.json` is the table from which hpcfl chooses lanes on such a GPU.",
        tabulate([{"fact": name, "value": value} for name, value in machine.items()]),
        "## Rows",
        tabulate([list_outcome(name, found) for name, found in results.items()]),
    ]
    explained = {row.title: inspect.getdoc(row.function) for row in rows}
    for title, explanation in explained.items():
        blocks += [f"## {title.capitalize()}", str(explanation)]
        of_title = {n: found for n, found in results.items() if found.title == title}
        lines = [line for found in of_title.values() for line in found.lines]
        if lines:
            blocks.append(tabulate(mark_fastest(lines)))
        for name, found in of_title.items():
            if found.status != "ok":
                blocks.append(f"{name}: {found.status}.")
            if found.last:
                blocks.append("\n".join(f"    {line}" for line in found.last))
    return "\n\n".join(blocks) + "\n"


def mark_fastest(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines; those of lanes have a mark at the fastest of a model and a
    precision.
    """
    fastest: dict[tuple[str, str], float] = {}
    for line in lines:
        if "seconds_per_sample" in line:
            key, seconds = (
                (line["model"], line["precision"]),
                line["seconds_per_sample"],
            )
            fastest[key] = min(seconds, fastest.get(key, seconds))
    marked = []
    for line in lines:
        is_fastest = line.get("seconds_per_sample") in fastest.values()
        marked.append({**line, "fastest": "yes"} if is_fastest else line)
    return marked


def list_outcome(name: str, found: Result) -> dict[str, Any]:
    """Return a row's line in the first table."""
    return {
        "row": name,
        "outcome": found.status,
        "seconds": found.seconds,
        "limit, seconds": found.limit,
    }


def tabulate(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table with all names of the lines as columns."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    cells = [[show(name, line.get(name, "")) for name in names] for line in lines]
    return pages.table(names, cells).strip()


def show(name: str, value) -> str:
    """Return a value of the column ``name`` as the text of a cell."""
    text = str(value)
    if "bytes" in name and value != "":
        text = format_size(value)
    elif name == "seconds_per_sample" and value != "":
        text = f"{1e6 * value:,.1f} µs"
    elif isinstance(value, float):
        text = f"{value:.4g}"
    return text.replace("|", "\\|")
