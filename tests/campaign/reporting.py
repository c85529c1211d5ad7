"""The report of a campaign run in one or several parts: tables in README.md, everything
in events.json.
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

PROMISE = """\
After every fault the job had to end in time, `show`, `status`, `table`, the disk and the exit code had to
agree, without a change or a traceback, and a refusal had to leave every byte as it was. Every run had to
finish afterwards with the digest and all numbers of an undisturbed one, each round once."""


def add(folder: Path, events: list[Event], seconds: float, command: str) -> None:
    """Add a part to what lies in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "events.json"
    parts = json.loads(file.read_text()) if file.exists() else []
    parts.append(
        {
            "command": command,
            "seconds": round(seconds),
            "commit": provenance.commit(),
            "cores": os.cpu_count(),
            "processor": provenance.processor(),
            "python": platform.python_version(),
            "events": [asdict(event) for event in events],
        }
    )
    file.write_text(json.dumps(parts, indent=1) + "\n")
    (folder / "README.md").write_text(markdown(parts))


def markdown(parts: list[dict[str, Any]]) -> str:
    events = [event for part in parts for event in part["events"]]
    wrong = [event for event in events if event["wrong"]]
    methods = ", ".join(
        f"{name} {times}×" for name, times in sorted(_count(events, "method").items())
    )
    late = sum(event["moment"] == LATE for event in events)
    lines = [
        f"# {len(events)} random faults, {len(wrong)} of them with a wrong outcome",
        "",
        PROMISE,
        "",
        f"Of these faults {late} came too late, when the run had ended; {len(events) - late} are left. "
        "Only the commits below were put to them.",
        "",
        *_table(events),
        "",
        *_moments(events),
        "",
        f"Methods: {methods}.",
        "",
        "| part | commit | faults | minutes |",
        "| --- | --- | ---: | ---: |",
        *(
            f"| `{part['command']}` | {part['commit']} | {len(part['events'])} | "
            f"{part['seconds'] / 60:.0f} |"
            for part in parts
        ),
        "",
        f"On {parts[-1]['cores']} cores of {parts[-1]['processor']}, Python {parts[-1]['python']}.",
        *(["", "## Wrong", ""] if wrong else []),
        *(
            f"* `--only {event['seed']}`: {event['method']}, {event['kind']} ({event['moment']}, "
            f"{event['detail']}): {'; '.join(event['wrong'])}"
            for event in wrong
        ),
    ]
    return "\n".join(lines) + "\n"


def _table(events: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| fault | times | exit codes | slowest end | wrong |",
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


def _moments(events: list[dict[str, Any]]) -> list[str]:
    moments = Counter(event["moment"].partition(",")[0] for event in events)
    wrong = Counter(
        event["moment"].partition(",")[0] for event in events if event["wrong"]
    )
    return [
        "| moment | times | wrong |",
        "| --- | ---: | ---: |",
        *(
            f"| {moment} | {times} | {wrong[moment]} |"
            for moment, times in sorted(moments.items())
        ),
    ]


def _count(events: list[dict[str, Any]], key: str) -> Counter[Any]:
    return Counter(event[key] for event in events)
