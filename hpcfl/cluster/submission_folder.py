"""``OUT/jobs``: what was submitted for the results folder ``OUT``, for ``submit`` and
for ``status``.
"""

import json
from pathlib import Path
from typing import TypeVar

from hpcfl.cluster.record import Record
from hpcfl.errors import UserError
from hpcfl.files import atomic, foreign
from hpcfl.files.atomic import Damaged
from hpcfl.storage.forms import FileName
from hpcfl.storage.run_folder import JOBS

SUBMITTED = "submitted.json"
LIMIT = 16 << 20  # bytes of a file here
Submitted = dict[FileName, str]  # cell → id of its job
Form = TypeVar("Form")


class Submissions:
    """What is in the folder ``jobs`` of the results folder ``out``, which need not
    exist yet.
    """

    def __init__(self, out: Path) -> None:
        """Read ``jobs``, the id of each cell's last job, or of that which it sent after
        itself.

        Raises UserError if a file is damaged.
        """
        self.folder = out / JOBS
        self.name = out.name or "hpcfl"
        submitted = _read(self.folder / SUBMITTED, Submitted)
        self.jobs = {cell: self._last(cell, job) for cell, job in submitted.items()}

    def frozen(self, cell: str) -> Path:
        """The cell's resolved configuration, as it was when it was submitted."""
        return self.folder / f"{cell}.json"

    def script(self, cell: str) -> Path:
        """A batch script for the cell that works without submitit."""
        return self.folder / f"{cell}.sbatch"

    def record(self, cell: str) -> Path:
        """The file with the cell's ``Record``."""
        return self.folder / f"{cell}.requeues"

    def failure(self, cell: str) -> str | None:
        """Why the cell's last job failed, where its supervisor could say."""
        return _read(self.record(cell), Record).get("failure")

    def add(self, jobs: dict[str, str]) -> None:
        """Note new jobs, cell → id. Raises RunFailure if the file cannot be written."""
        self.jobs = self.jobs | jobs
        atomic.write(self.folder / SUBMITTED, json.dumps(self.jobs, indent=1).encode())

    def _last(self, cell: str, job: str) -> str:
        """The job at the end of the chain of followers that begins with ``job``."""
        followers = dict(_read(self.record(cell), Record).get("followers", {}))
        while job in followers:
            job = followers.pop(job)  # so that a circle ends
        return job


def _read(path: Path, form: type[Form]) -> Form:
    """What is in the file, empty if there is none. Raises UserError if it is damaged."""
    try:
        return foreign.read_json(path, form, LIMIT)
    except FileNotFoundError:
        return form()
    except Damaged as error:
        raise UserError(
            f"{path}: cannot be read ({error}); delete it to forget these jobs"
        ) from None
