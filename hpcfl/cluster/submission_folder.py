"""``OUT/jobs``: the submitted jobs of the results folder ``OUT``, for ``submit`` and
``status``.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

from hpcfl.cluster.supervisor import Record
from hpcfl.errors import UserError
from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage.forms import FileName
from hpcfl.storage.run_folder import JOBS

SUBMITTED = "submitted.json"
OUTCOME = "outcome"  # name of the last job of a tuning
LIMIT = 16 << 20  # limit in bytes for a file
Submitted = dict[FileName, str]  # cell → id of its job
Form = TypeVar("Form")


class SubmittedJobs:
    """Submitted jobs in the folder ``jobs`` of a results folder, which may not exist
    yet.
    """

    def __init__(self, out: Path) -> None:
        """Read ``jobs``: the id of each cell's last job, or of the last job that
        continues it.

        Raises UserError if a file is damaged.
        """
        self.folder = out / JOBS
        self.name = out.name or "hpcfl"
        submitted = _read(self.folder / SUBMITTED, Submitted)
        self.jobs = {
            cell: self._find_last_job(cell, job) for cell, job in submitted.items()
        }

    def get_config_path(self, cell: str) -> Path:
        """Return the file with the cell's resolved configuration at the time of
        submission.
        """
        return self.folder / f"{cell}.json"

    def read_config(self, cell: str) -> dict[str, Any]:
        """Return the file of ``get_config_path``; empty without a file."""
        return _read(self.get_config_path(cell), dict[str, Any])

    def get_script_path(self, cell: str) -> Path:
        """Return the file of the cell's batch script, which does not need submitit."""
        return self.folder / f"{cell}.sbatch"

    def get_record_path(self, cell: str) -> Path:
        """Return the file with the cell's ``Record``."""
        return self.folder / f"{cell}.requeues"

    def read_failure(self, cell: str) -> str | None:
        """Return the reason why the cell's last job failed, if its supervisor recorded
        it.
        """
        return _read(self.get_record_path(cell), Record).get("failure")

    def add(self, jobs: dict[str, str]) -> None:
        """Record new jobs, ids by cell. Raises RunFailure if the file cannot be
        written.
        """
        self.jobs = self.jobs | jobs
        atomic.write(self.folder / SUBMITTED, json.dumps(self.jobs, indent=1).encode())

    def _find_last_job(self, cell: str, job: str) -> str:
        """Return the last job in the chain of followers that begins with ``job``."""
        followers = dict(_read(self.get_record_path(cell), Record).get("followers", {}))
        while job in followers:
            job = followers.pop(job)  # pop, so that a cycle ends
        return job


def _read(path: Path, form: type[Form]) -> Form:
    """Return the content of a file; empty without a file. Raises UserError if it is
    damaged.
    """
    try:
        return untrusted_files.read_json(path, form, LIMIT)
    except FileNotFoundError:
        return form()
    except Damaged as error:
        raise UserError(
            f"{path}: cannot be read ({error}); delete it to forget these jobs"
        ) from None
