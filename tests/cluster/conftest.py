"""A real Slurm of two nodes on this machine, and operations for tests."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from places import ROOT
from zygote import Zygote

TESTBED = ROOT / "slurm" / "testbed"
METHODS = Path(__file__).with_name("methods_for_jobs.py")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
PATIENCE = 300  # maximal seconds to wait

EXPERIMENT = """
name = "e"
rounds = 20
[partition]
clients = 6
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
[method]
name = "methods_for_jobs:Slow"
{pause}
[checkpoint]
every = {every}
"""


@dataclass
class Cluster:
    """Commands on the test Slurm, run in ``folder``, with a profile named "bed" in it."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, check: bool = True, stderr: int | None = None) -> str:
        """Return a command's standard output."""
        answer = subprocess.run(
            command,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=PATIENCE,
            env=self.environment,
        )
        assert not check or answer.returncode == 0, (
            f"{command}: {answer.returncode}\n{answer.stdout}"
        )
        return answer.stdout

    def hpcfl(self, *arguments: str, check: bool = True) -> str:
        """Return an hpcfl command's output, including errors."""
        return self.run("hpcfl", *arguments, check=check, stderr=subprocess.STDOUT)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)
        return name

    def experiment(
        self, pause: float = 0.0, every: int | str = 1, sweep: str = "", since: int = 3
    ) -> str:
        """Write an experiment file of 20 rounds.

        pause: seconds of each round without computation, from round ``since`` until
        ``hurry``, so many that a slow machine does not reach round 20 before the test
        changes the run.
        """
        self.write("slow", "")
        text = EXPERIMENT.format(
            pause=f"pause = {pause}\nsince = {since}" if pause else "",
            every=json.dumps(every),
        )
        return self.write("e.toml", text + sweep)

    def start_afresh(self):
        """Start new processes instead of forking them from the zygote from here on."""
        own = Path(sys.executable).parent
        self.environment["PATH"] = f"{own}{os.pathsep}{os.environ['PATH']}"

    def hurry(self):
        (self.folder / "slow").unlink()

    def profile(self, **keys: object):
        values = {
            "nodes": 2,
            "ranks_per_node": 2,
            "time": "0:10:00",
            "warning": 60,
            **keys,
        }
        self.write(
            "slurm/profiles/bed.toml",
            "".join(
                f"{key} = {value if isinstance(value, int) else repr(value)}\n"
                for key, value in values.items()
            ),
        )

    def submit(self, out: str = "out") -> list[str]:
        """Return the ids of the jobs in the order of their cells, including jobs that
        were already in the queue.
        """
        output = self.hpcfl("submit", "e.toml", "--profile", "bed", "--out", out)
        return [
            line.rpartition(" ")[2] for line in output.splitlines() if " job " in line
        ]

    def state(self, job: str) -> str:
        """Return Slurm's state of a job, e.g. PENDING; requeued jobs, which Slurm holds
        for two minutes, are released at once.
        """
        state = self._query(job, "State", "--array")
        if state == "PENDING":
            self._try(f"scontrol update jobid={job} StartTime=now")
        return state

    def restarts(self, job: str) -> int:
        self.state(job)  # releases it
        return int(self._query(job, "RestartCnt"))

    def _query(self, job: str, field: str, option: str = "") -> str:
        """Return a field of Slurm's information on a job."""
        line = (
            f"squeue --noheader --states=all {option} --jobs {job} --Format={field}:|"
        )
        return self.run(*line.split()).strip().strip("| ")

    def _try(self, line: str):
        """Run a command that may fail, without its errors."""
        self.run(*line.split(), check=False, stderr=subprocess.DEVNULL)

    def empty(self):
        """Cancel all jobs and wait until none is left."""
        self._try(f"scancel --full --signal=KILL --user {os.getuid()}")
        self._try(f"scancel --user {os.getuid()}")
        self.until(
            lambda: not self.run("squeue", "--noheader").strip(), "an empty queue"
        )

    def wait(self, job: str, end: str = "COMPLETED"):
        """Wait until the job has ended in this state."""
        self.until(lambda: self.ended(job), f"the end of job {job}")
        assert self.state(job) == end, self.log()

    def warn(self, job: str):
        """Send Slurm's warning before the time limit early."""
        self.run("scancel", "--batch", "--signal=USR2", job)

    def finish(self, *jobs: str, out: str = "out") -> str:
        """Let jobs end without pauses and return the digest of a run."""
        self.hurry()
        for job in jobs:
            self.wait(job)
        return self.digest(out)

    def ended(self, job: str) -> bool:
        """Return whether the job has ended for good: a job that is being requeued also
        passes through such a state.
        """
        if self.state(job) not in ENDS:
            return False
        time.sleep(2)
        return self.state(job) in ENDS

    def wait_for_round(self, number: int):
        """Wait until round ``number`` of the run in ``out`` is recorded."""

        def recorded() -> bool:
            names = [path.stem for path in self.folder.glob("out/rounds/*.h5")]
            return (
                any(int(name.rpartition("-")[2]) >= number for name in names)
                or self.rounds() >= number
            )

        self.until(recorded, f"round {number}")

    def start_until_round_three(self) -> str:
        """Start a job of slow rounds, wait for its third round and return it."""
        self.experiment(pause=3)
        self.profile(ranks_per_node=1)
        (job,) = self.submit()
        self.wait_for_round(3)
        return job

    def until(self, happened: Callable[[], bool], what: str):
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline, (
                f"{what}: not within {PATIENCE} s\n{self.run('squeue')}\n{self.log()}"
            )
            time.sleep(0.5)

    def rounds(self, out: str = "out") -> int:
        """Return the rounds of a run's newest checkpoint."""
        found = sorted(self.folder.glob(f"{out}/checkpoints/manifest-*.json"))
        return int(found[-1].stem.rpartition("-")[2]) if found else 0

    def log(self) -> str:
        """Return the logs of all jobs of ``out``."""
        return "\n".join(
            path.read_text() for path in sorted(self.folder.glob("out/jobs/*.out"))
        )

    def digest(self, out: str = "out") -> str:
        """Return the digest of the newest checkpoint of a finished run."""
        assert self.rounds(out) == 20
        (newest,) = self.folder.glob(f"{out}/checkpoints/manifest-00000020.json")
        return json.loads(newest.read_text())["manifest"]["digest"]


@pytest.fixture
def make_place(tmp_path: Path, monkeypatch):
    """Return ``make_place(file, text, profiles)``, which makes the current folder with
    an experiment file and profiles, and returns it.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(file: str, text: str, profiles: dict[str, str]) -> Path:
        (tmp_path / file).write_text(text)
        folder = tmp_path / "slurm" / "profiles"
        folder.mkdir(parents=True)
        for name, profile in profiles.items():
            (folder / f"{name}.toml").write_text(profile)
        return tmp_path

    return write


@pytest.fixture(scope="session")
def testbed(zygote: Zygote) -> Iterator[dict[str, str]]:
    """Return the environment in which Slurm's commands find the test Slurm, and Python
    processes, also of its jobs, are forked from the zygote.
    """
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    if any(shutil.which(program) is None for program in PROGRAMS):
        installed = subprocess.run(
            [TESTBED / "install"], capture_output=True, text=True
        )
        if installed.returncode:
            pytest.skip(
                f"Slurm is not installed and cannot be: {installed.stderr.strip().splitlines()[-1]}"
            )
    # the path of a socket must be short
    folder = Path(f"/tmp/hpcfl-testbed-{os.getpid()}")
    started = subprocess.run(
        [TESTBED / "start", folder],
        capture_output=True,
        text=True,
        env={**os.environ, "HPCFL_TESTBED_PORT": str(20000 + os.getpid() % 10000 * 3)},
    )
    if started.returncode:
        pytest.skip(f"Slurm does not start here: {started.stderr.strip()}")
    try:
        yield {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": zygote.path,
        }
    finally:
        subprocess.run([TESTBED / "stop", folder], check=True)


@pytest.fixture
def cluster(testbed: dict[str, str], tmp_path: Path) -> Iterator[Cluster]:
    """Return the test Slurm, which is empty again afterwards."""
    shutil.copy(METHODS, tmp_path)
    found = Cluster(tmp_path, dict(testbed))
    found.profile()
    yield found
    found.empty()


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, testbed: dict[str, str]
) -> str:
    """Return the digest of the experiment run by one process without pauses."""
    plain = Cluster(tmp_path_factory.mktemp("plain"), testbed)
    shutil.copy(METHODS, plain.folder)
    plain.experiment()
    plain.hpcfl("run", "e.toml", "--out", "out")
    return plain.digest()
