"""``OUT/jobs``: what was submitted for the results folder ``OUT``, for those who submit and those who look."""

import json
from pathlib import Path
from typing import Any

from hpcfl.storage import atomic

JOBS = "jobs"
SUBMITTED = "submitted.json"


class Submissions:
    """``jobs``: the last job of each cell, name → id; one that a job sent after itself counts as well."""

    def __init__(self, out: Path) -> None:
        self.folder = out / JOBS
        self.name = out.name or "hpcfl"
        self.jobs: dict[str, str] = {cell: self._last(cell, job) for cell, job in _read(self.folder / SUBMITTED).items()}

    def frozen(self, cell: str) -> Path:
        """The cell's resolved configuration, as it was when it was submitted."""
        return self.folder / f"{cell}.json"

    def script(self, cell: str) -> Path:
        """A batch script for the cell that works without submitit."""
        return self.folder / f"{cell}.sbatch"

    def record(self, cell: str) -> Path:
        """How often the cell's job was requeued, which job follows which, and why the last failed."""
        return self.folder / f"{cell}.requeues"

    def failure(self, cell: str) -> str | None:
        """Why the cell's last job failed, where its supervisor could say."""
        return _read(self.record(cell)).get("failure")

    def add(self, jobs: dict[str, str]) -> None:
        """Note new jobs. Raises RunFailure."""
        self.jobs = self.jobs | jobs
        atomic.write(self.folder / SUBMITTED, json.dumps(self.jobs, indent=1).encode())

    def _last(self, cell: str, job: str) -> str:
        followers = _read(self.record(cell)).get("followers", {})
        while job in followers:
            job = followers[job]
        return job


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
