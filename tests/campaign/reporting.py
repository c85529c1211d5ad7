"""Write the report of a campaign of one or several parts.

README.md has the table of faults, details.md the other tables, and events.json all events.
"""

import json
import os
import platform
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from episode import Event
from faults import LATE

from hpcfl.storage import provenance

CHECKS = """\
The campaign checks four conditions after every fault; a violation counts as a wrong outcome:

* The job ends within its time limit.
* `show`, `status`, `table`, the files on disk and the exit code agree.
* A refused command leaves every byte unchanged.
* The continued run finishes with the digest and all numbers of an undisturbed run.
"""


def add(folder: Path, events: list[Event], seconds: float, command: str):
    """Add a part to the report in a folder.

    Args:
        folder: Folder of the report.
        events: Events of the part.
        seconds: Duration of the part.
        command: Command of the part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "events.json"
    parts = json.loads(file.read_text()) if file.exists() else []
    parts.append(
        {
            "command": command,
            "seconds": round(seconds),
            "commit": provenance.find_commit(),
            "cores": os.cpu_count(),
            "processor": provenance.read_processor(),
            "python": platform.python_version(),
            "events": [asdict(event) for event in events],
        }
    )
    file.write_text(json.dumps(parts, indent=1) + "\n")
    for name, text in {"README": summarise(parts), "details": detail(parts)}.items():
        (folder / f"{name}.md").write_text("\n".join(text) + "\n")


def summarise(parts: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the page with the table of faults."""
    events = [event for part in parts for event in part["events"]]
    wrong = sum(bool(event["wrong"]) for event in events)
    late = sum(event["moment"] == LATE for event in events)
    return [
        f"# Random faults: {len(events)} faults, {wrong} wrong outcomes",
        "",
        *_table(events),
        "",
        CHECKS,
        f"{late} of the {len(events)} faults happened after the end of the run.",
        "",
        "## Measurement",
        "",
        f"    {parts[0]['command']}",
        "",
        "This command causes random faults at random moments and adds them to this page. The "
        f"last part ran on {parts[-1]['cores']} cores of {parts[-1]['processor']} with Python "
        f"{parts[-1]['python']}.",
        "[Details](details.md) lists the wrong outcomes, the moments, the methods, and all parts "
        "with their commits.",
    ]


def detail(parts: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the page with wrong outcomes, moments, methods and parts."""
    events = [event for part in parts for event in part["events"]]
    methods = _count(events, "method")
    return [
        "# Random faults: details",
        "",
        "[The table of faults](README.md) is on a separate page. This page lists the wrong "
        "outcomes with their options, and the numbers of faults by moment, method and part.",
        "",
        "## Wrong outcomes",
        "",
        *(
            f"* `--only {event['seed']}`: {event['method']}, {event['kind']} "
            f"({event['moment']}, {event['detail']}): {'; '.join(event['wrong'])}"
            for event in events
            if event["wrong"]
        ),
        "",
        "## Moments",
        "",
        *_list_moments(events),
        "",
        "## Methods",
        "",
        "| Method | Times |",
        "| --- | ---: |",
        *(f"| {name} | {times} |" for name, times in sorted(methods.items())),
        "",
        "## Parts",
        "",
        "| Command | Commit | Faults | Minutes |",
        "| --- | --- | ---: | ---: |",
        *(
            f"| `{part['command']}` | {part['commit']} | {len(part['events'])} | "
            f"{part['seconds'] / 60:.0f} |"
            for part in parts
        ),
    ]


def _table(events: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| Fault | Times | Exit codes | Slowest end | Wrong |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    for kind in _count(events, "kind"):
        those = [event for event in events if event["kind"] == kind]
        counted = sorted(_count(those, "code").items(), key=str)
        codes = ", ".join(f"{code} ({times}×)" for code, times in counted)
        slowest = max(event["seconds"] for event in those)
        wrong = sum(bool(event["wrong"]) for event in those)
        lines.append(f"| {kind} | {len(those)} | {codes} | {slowest:.1f} s | {wrong} |")
    return lines


def _list_moments(events: list[dict[str, Any]]) -> list[str]:
    moments = Counter(event["moment"].partition(",")[0] for event in events)
    wrong = Counter(
        event["moment"].partition(",")[0] for event in events if event["wrong"]
    )
    return [
        "| Moment | Times | Wrong |",
        "| --- | ---: | ---: |",
        *(
            f"| {moment} | {times} | {wrong[moment]} |"
            for moment, times in sorted(moments.items())
        ),
    ]


def _count(events: list[dict[str, Any]], key: str) -> Counter[Any]:
    return Counter(event[key] for event in events)
