"""A run for faults: its file, its folder, the undisturbed run for comparison, its
commands.
"""

import hashlib
import io
import random
import tempfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from inside import Strike
from job import Job, Output
from zygote import Zygote

from hpcfl import cli
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.files.atomic import Damaged
from hpcfl.storage import manifest, results
from hpcfl.storage.manifest import Manifest
from hpcfl.storage.results import Results

# seconds of silence; runtime.hang_after. A first step took 8 s on a machine with a load
# of 7.
HANG_AFTER = 15
FINISH = 120.0  # maximal seconds of an undisturbed run on a loaded machine
ROUNDS = 5
EXPERIMENT = """
name = "campaign"
rounds = {rounds}
[data]
dataset = "digits"
[partition]
clients = 5
[model]
name = "mlp"
hidden = [8]
[training]
lr = 0.05
batch_size = 100
[participation]
fraction = {fraction}
[evaluation]
every = {scored}
[method]
name = "{method}"
[checkpoint]
every = {saved}
[runtime]
hang_after = {hang_after}
"""
ASYNCHRONOUS = """
[time]
mode = "asynchronous"
rule = "{rule}"
concurrency = 4
buffer = 2
sigma = 1.0
"""


@dataclass(frozen=True)
class Undisturbed:
    """Result of an undisturbed run, and its number of input/output operations.

    other: folder of a run that differs only in its seed.
    """

    digest: str
    results: Results
    operations: int
    other: Path

    @cached_property
    def others_digest(self) -> str:
        """Return the digest of the other run."""
        [newest, *_] = manifest.list_newest_first(self.other / "checkpoints")
        return manifest.read(newest).digest


@dataclass
class Scene:
    """A run; ``place`` contains only its folder. ``done``: the faults of the run so
    far.
    """

    zygote: Zygote
    file: Path
    place: Path
    undisturbed: Undisturbed
    chance: random.Random
    most_ranks: int
    done: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # kinds of files

    @cached_property
    def folder(self) -> Path:
        return self.place / "run"

    def elsewhere(self) -> Path:
        """Return a new folder on the same file system outside ``place``."""
        beside = self.place.with_name(f"{self.place.name}-elsewhere")
        beside.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(dir=beside))

    def ranks(self) -> int:
        """Return the number of ranks to start with, mostly one, which is quick; 0 is
        without mpiexec.
        """
        return self.chance.choice([0, 0, 0, *range(1, self.most_ranks + 1)])

    def start(
        self, ranks: int, strike: Strike | None = None, *options: str, **extra: str
    ) -> Job:
        """Start ``hpcfl run`` on the folder."""
        strike = replace(strike or Strike(""), folder=str(self.folder))
        return Job(
            self.zygote,
            ranks,
            ["run", str(self.file), "--out", str(self.folder), *options],
            strike,
            extra,
        )

    def look(self, *command: str) -> tuple[int | None, Output]:
        """Run a reading command in this process and return its exit code and output."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.command([*command], OneProcess())
        return code, Output(out.getvalue(), err.getvalue())

    def look_as(self, user: int, *command: str) -> tuple[int | None, Job]:
        """Run it in a process of another user and return its exit code and the ended
        job.
        """
        job = self.begin(*command, user=user)
        return job.end(FINISH), job

    def begin(self, *command: str, user: int | None = None) -> Job:
        """Start a reading command without waiting for its end."""
        return Job(self.zygote, 0, [*command], Strike(str(self.folder), user=user))

    def manifests(self) -> list[tuple[Path, Manifest]]:
        """Return the checkpoints that are completely intact, newest first."""
        found = []
        for path in manifest.list_newest_first(self.folder / "checkpoints"):
            try:
                one = manifest.read(path)
                one.verify(self.folder / "checkpoints")
            except Damaged:
                continue
            found.append((path, one))
        return found

    def lost(self) -> bool:
        """Return whether no state is left to continue from, so that a start without
        --fresh is refused.
        """
        return bool(self.damaged) and not self.manifests()

    def _complete(self) -> list[Manifest]:
        """Return the checkpoints with all files of the correct size."""
        folder, found = self.folder / "checkpoints", []
        for path in manifest.list_newest_first(folder):
            with suppress(Damaged, OSError):
                one = manifest.read(path)
                if all(
                    (folder / shard.name).lstat().st_size == shard.size
                    for shard in one.files
                ):
                    found.append(one)
        return found

    def recorded(self) -> Results:
        """Return the readable metrics, or nothing if none can be read."""
        try:
            return results.read(self.folder)
        except UserError:
            return Results()

    def finished(self) -> bool:
        """Return whether round R + 1 is on the disk, and whether the scored state
        appears complete without reading it all.
        """
        newest = max((one.round for one in self._complete()), default=0)
        return ROUNDS + 1 in self.recorded().rounds and not 0 < newest < ROUNDS

    def stamp(self) -> dict[str, tuple[object, ...]]:
        """Return names, types, rights, contents, and times of all files below
        ``place``.
        """
        return {
            str(path.relative_to(self.place)): _stamp(path)
            for path in sorted(self.place.rglob("*"))
        }


def _stamp(path: Path) -> tuple[object, ...]:
    about = path.lstat()
    if not path.is_file():
        return (about.st_mode,)
    return (
        about.st_mode,
        about.st_mtime_ns,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def write(folder: Path, method: str, number: int) -> Path:
    """Write the experiment file of a method, or of ``RULE METHOD`` for an asynchronous
    server; the number varies training, scoring and saving.
    """
    rule, _, name = method.rpartition(" ")
    file = folder / f"{method}.toml"
    varied = {
        "fraction": (1.0, 0.6)[number % 2],
        "scored": 1 + number // 2 % 2,
        "saved": 1 + number // 3 % 2,
    }
    text = EXPERIMENT.format(
        method=name, rounds=ROUNDS, hang_after=HANG_AFTER, **varied
    )
    if rule:
        text += ASYNCHRONOUS.format(rule=rule)
    file.write_text(text)
    return file


def undisturbed(zygote: Zygote, file: Path, place: Path) -> Undisturbed:
    """Run it without faults in this folder, and then with another seed."""
    folder, other = place / "run", place / "other"
    job = _alone(zygote, file, folder)
    _alone(zygote, file, other, "--set", "seed=9")
    newest = manifest.read(manifest.list_newest_first(folder / "checkpoints")[0])
    return Undisturbed(newest.digest, results.read(folder), job.operations(), other)


def _alone(zygote: Zygote, file: Path, folder: Path, *options: str) -> Job:
    """Return the ended job."""
    arguments = ["run", str(file), "--out", str(folder), *options]
    job = Job(zygote, 0, arguments, Strike(str(folder)))
    if job.end(FINISH):
        raise RuntimeError(f"{file.stem}: does not run even undisturbed: {job.output}")
    return job
