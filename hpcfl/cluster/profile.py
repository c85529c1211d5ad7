"""Cluster profiles: the resources that a job requests, as TOML files for ``--profile``."""

import math
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import wrong_values
from hpcfl.experiment.sections import Section

TIME = re.compile(r"(?:(\d{1,10})-)?(\d{1,10})(?::(\d{1,2}))?(?::(\d{1,2}))?")
WORD = r"^[\w.,@:+/=-]+$"  # without characters that are special in a shell
LINE = r"^[^\x00-\x1f\x7f]*$"
OPTION = r"^[a-z][a-z-]*$"
MEMORY = r"^\d+[KMGT]?$"
UNLIMITED = ("unlimited", "infinite", "-1")  # sbatch's words for no time limit
LIMIT = rf"^(?:{TIME.pattern}|(?i:{'|'.join(UNLIMITED)}))$"
ACTIVATES = re.compile(r"\bactivate\b")  # as in conda activate, source bin/activate
# Options of sbatch that a key of the profile sets, or hpcfl.
OWN_OPTIONS = {
    "partition": "the key partition",
    "account": "the key account",
    "qos": "the key qos",
    "constraint": "the key constraint",
    "nodes": "the key nodes",
    "ntasks": "the keys nodes and ranks_per_node",
    "ntasks-per-node": "the key ranks_per_node",
    "cpus-per-task": "the key cores",
    "gpus-per-node": "the key gpus_per_node",
    "mem": "the key memory",
    "time": "the key time",
    "signal": "the key warning",
    "array": "the key at_once",
    "job-name": "the name of the experiment",
    "output": "--out",
    "open-mode": "nothing: hpcfl needs append",
    "dependency": "nothing: hpcfl sets it",
}
Word = Annotated[str, Field(pattern=WORD)]
Line = Annotated[str, Field(pattern=LINE)]
Option = Annotated[str, Field(pattern=OPTION)]


class Profile(Section):
    """Keys of a profile.

    A job has ``nodes`` × ``ranks_per_node`` MPI ranks; the first is the server.
    """

    cluster: Literal["slurm", "local", "debug"] = Field(
        "slurm",
        description="slurm; local: the same job on this machine without Slurm; debug: "
        "one rank, in the submitting process",
    )
    partition: Word | None = Field(None, description="Slurm's partition")
    account: Word | None = Field(None, description="account that is charged")
    qos: Word | None = Field(None, description="quality of service")
    constraint: Line | None = Field(None, description="required features of nodes")
    nodes: PositiveInt = Field(1, description="nodes per job")
    ranks_per_node: PositiveInt = Field(
        2,
        description="MPI ranks per node; with GPUs one per GPU plus one "
        "for the server, which only the first node then hosts",
    )
    gpus_per_node: NonNegativeInt = Field(
        0, description="GPUs per node, assigned by node-local rank"
    )
    cores: PositiveInt = Field(
        1, description="CPU cores per rank; at least runtime.threads"
    )
    memory: str | None = Field(
        None,
        pattern=MEMORY,
        description="memory per node, e.g. 64G",
    )
    time: str = Field(
        "1:00:00",
        pattern=LIMIT,
        description="time limit in a format of sbatch, e.g. 1-12:00:00",
    )
    mpi: Word = Field(
        "pmi2",
        description="srun --mpi=…: pmi2 for MPICH, pmix for Open MPI; "
        "mpiexec: start ranks by mpiexec",
    )
    setup: list[Line] = Field(
        default_factory=list,
        description="shell commands before the run, e.g. 'module load mpich'",
    )
    python: str | None = Field(
        None,
        pattern=LINE,
        description="interpreter of the job; default: python of the environment "
        "that setup activates, otherwise the submitting interpreter",
    )
    warning: PositiveInt = Field(
        120,
        description="seconds before the time limit at which the job is asked to "
        "stop; longer than a round, so that the round is not lost",
    )
    max_requeues: NonNegativeInt = Field(
        3, description="largest number of requeues without a new checkpoint"
    )
    at_once: PositiveInt = Field(
        8, description="largest number of cells of a sweep that run at the same time"
    )
    options: dict[Option, Line | bool | int] = Field(
        default_factory=dict, description="further options of sbatch"
    )

    @field_validator("memory", "time", mode="before")
    @classmethod
    def _convert_to_text(cls, amount: object) -> object:
        """Return a whole number as text."""
        whole = isinstance(amount, int) and not isinstance(amount, bool)
        return str(amount) if whole else amount

    @field_validator("memory", mode="before")
    @classmethod
    def _cut_byte(cls, memory: object) -> object:
        """Return ``64G`` for ``64GB`` or ``64g``, which sbatch does not document."""
        if not isinstance(memory, str):
            return memory
        return re.sub(r"(?<=[KMGT])B$", "", memory.upper())

    @field_validator("options")
    @classmethod
    def _refuse_own(cls, options: dict[str, object]) -> dict[str, object]:
        """Refuse options that would occur twice in a batch script."""
        for name in options.keys() & OWN_OPTIONS.keys():
            raise ValueError(f"remove {name}; set {OWN_OPTIONS[name]} instead")
        return options

    @property
    def has_server_apart(self) -> bool:
        """Return whether the first node has one rank more than the others, the server.

        All GPUs then have equally many workers. ``srun`` supports this placement,
        ``mpiexec`` does not.
        """
        workers = self.ranks_per_node - 1
        return (
            self.starts_by_srun
            and self.nodes > 1
            and 0 < self.gpus_per_node <= workers
            and workers % self.gpus_per_node == 0
        )

    @property
    def starts_by_srun(self) -> bool:
        """Return whether ``srun`` starts the ranks."""
        return self.cluster == "slurm" and self.mpi != "mpiexec"

    @property
    def ranks(self) -> int:
        """Return the number of MPI ranks of a job."""
        if self.cluster == "debug":
            return 1
        if self.has_server_apart:
            return self.nodes * (self.ranks_per_node - 1) + 1
        return self.nodes * self.ranks_per_node

    @property
    def interpreter(self) -> str:
        """Return the Python interpreter of a job; it must be quoted for the shell."""
        if self.python is not None:
            return os.path.expanduser(self.python)
        activates = any(ACTIVATES.search(line) for line in self.setup)
        return "python" if activates and self.cluster == "slurm" else sys.executable

    @property
    def seconds(self) -> float:
        """Return the time limit in seconds, as sbatch reads it; infinity without one."""
        if self.time.lower() in UNLIMITED:
            return math.inf
        parts = TIME.fullmatch(self.time)
        assert parts is not None  # the field's pattern
        days, *units = parts.groups()
        given = [int(unit) for unit in units if unit is not None]
        if days is None and len(given) < 3:
            given = [0, *given]  # the format begins with minutes
        hours, minutes, seconds = [*given, 0, 0][:3]
        total = ((24 * int(days or 0) + hours) * 60 + minutes) * 60 + seconds
        return total or math.inf  # sbatch reads 0 as no limit


def list_folders() -> list[Path]:
    """Return the folders of profiles: the user's, and one below the current folder."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [home / "hpcfl" / "profiles", Path("slurm") / "profiles"]


def load(name: str) -> Profile:
    """Return a profile.

    Args:
        name: path of a TOML file, or name of a profile in one of ``list_folders()``.

    Raises:
        UserError: The profile does not exist or is invalid.
    """
    path = Path(name) if name.endswith(".toml") else _find(name)
    try:
        profile = Profile(**tomllib.loads(path.read_text(encoding="utf-8")))
    except pydantic.ValidationError as error:
        lines = wrong_values.explain(error, "", lambda: Profile.model_fields)
        raise UserError(*(f"{path}: {line}" for line in lines)) from None
    except FileNotFoundError:
        advice = _advise_new(path.stem)
        raise UserError(f"{path}: no such profile; {advice}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    if profile.cluster == "slurm" and profile.seconds <= profile.warning:
        raise UserError(
            f"{path}: time = '{profile.time}' is {profile.seconds:g} s, but a job needs "
            f"more than warning = {profile.warning} s"
        )
    return profile


def _find(name: str) -> Path:
    """Return the file of a profile by name, from the first folder that contains it.

    Raises UserError.
    """
    known = {
        path.stem: path
        for folder in reversed(list_folders())
        for path in sorted(folder.glob("*.toml"))
    }
    if name not in known:
        looked = " and ".join(str(folder.absolute()) for folder in list_folders())
        hint = suggest(name, known) if known else ""
        advice = _advise_new(name)
        raise UserError(
            f"--profile {name}: no such profile in {looked}{hint}; {advice}"
        )
    return known[name]


def _advise_new(name: str) -> str:
    """Return the command that writes a profile of a similar name that it accepts."""
    accepted = re.sub(r"^[^A-Za-z]+|\W", "_", name).lstrip("_") or "my_profile"
    return (
        f"hpcfl new profile {accepted} writes {accepted}.toml here, for --profile "
        f"{accepted}.toml"
    )
