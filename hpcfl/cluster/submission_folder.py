"""``OUT/jobs``: what was submitted for the results folder ``OUT``, for those who submit and
those who look."""

import json
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import ConfigDict, StringConstraints, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.errors import UserError
from hpcfl.files import atomic, foreign
from hpcfl.files.atomic import Damaged

JOBS = "jobs"
SUBMITTED = "submitted.json"
LIMIT = 16 << 20  # bytes of a file here
# The name of a file, not a path out of its folder.
FileName = Annotated[str, StringConstraints(pattern=r"^[^/\x00]*[^/\x00.][^/\x00]*$")]
Submitted = dict[FileName, str]  # cell → job
Form = TypeVar("Form")


@with_config(ConfigDict(extra="allow"))
class Record(TypedDict, total=False):
    """Of a cell's jobs: which follows which, why the last failed, and what their supervisor counts."""

    followers: dict[str, str]
    failure: str | None
    rounds: int
    fruitless: int


class Submissions:
    """``jobs``: the last job of each cell, name → id; one that a job sent after itself counts as well.

    Raises UserError where what was noted cannot be read.
    """

    def __init__(self, out: Path) -> None:
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
        """How often the cell's job was requeued, which job follows which, and why the last failed."""
        return self.folder / f"{cell}.requeues"

    def failure(self, cell: str) -> str | None:
        """Why the cell's last job failed, where its supervisor could say."""
        return _read(self.record(cell), Record).get("failure")

    def add(self, jobs: dict[str, str]) -> None:
        """Note new jobs. Raises RunFailure."""
        self.jobs = self.jobs | jobs
        atomic.write(self.folder / SUBMITTED, json.dumps(self.jobs, indent=1).encode())

    def _last(self, cell: str, job: str) -> str:
        followers = dict(_read(self.record(cell), Record).get("followers", {}))
        while job in followers:
            job = followers.pop(job)  # so that a circle ends
        return job


def _read(path: Path, form: type[Form]) -> Form:
    """What is in the file, nothing where there is none. Raises UserError."""
    try:
        return foreign.read_json(path, form, LIMIT)
    except FileNotFoundError:
        return form()
    except Damaged as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it to forget these jobs") from None
