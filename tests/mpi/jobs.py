"""Real jobs: the command under mpiexec, on the tiny data.

Its processes are forked from a zygote, which saves the seconds of their imports. They
are found by a mark in their environment, and ranks by the files that they write.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from zygote import PATHS, Zygote

from hpcfl.storage.manifest import find_latest

MPIEXEC = Path(sys.executable).with_name("mpiexec")
GIGABYTES_PROGRAM = str(Path(__file__).with_name("gigabytes.py"))
# rows with more bytes in total than 32 bits can count: two, and many narrow ones
GIGABYTES = [
    {"COUNT": "2", "WIDTH": str((1 << 30) + 4096)},
    {"COUNT": "36000", "WIDTH": "60000"},
]
PATIENCE = 280  # seconds; large, because processes start slowly on a loaded machine

EXPERIMENT = """
name = "t"
seed = 3
rounds = {rounds}
[data]
dataset = "tiny:blobs"
[partition]
scheme = "tiny:Counts"
clients = 5
counts = [[8, 3, 0, 0], [0, 9, 2, 0], [1, 0, 6, 6], [0, 0, 5, 10], [5, 5, 5, 5]]
[model]
name = "mlp"
hidden = [8]
[training]
lr = 0.1
batch_size = 4
[checkpoint]
every = 2
"""


class Job:
    """A started command. With ``ranks`` 0 it is one process without mpiexec.

    place: empty folder for the ranks' files. launcher: command that starts the ranks,
    without their number.
    """

    def __init__(
        self,
        place: Path,
        zygote: Zygote,
        ranks: int,
        arguments: list[str],
        program: tuple[str, ...] = ("-m", "hpcfl"),
        launcher: tuple[str, ...] = (str(MPIEXEC),),
        command: str = "run",
        **environment: str,
    ):
        self._place = place
        started = [*launcher, "-n", str(ranks)] if ranks else []
        self.process = subprocess.Popen(
            [*started, zygote.python, *program, command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": PATHS,
                "HPCFL_JOB": str(self._place),
                **environment,
            },
        )

    def wait(self) -> tuple[int, str]:
        """Return exit code and output."""
        try:
            output, _ = self.process.communicate(timeout=PATIENCE)
        finally:
            self.end()
        return self.process.returncode, output

    def end(self):
        """Kill the remaining processes."""
        self.signal(signal.SIGKILL, self.pids())
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def pids(self) -> list[int]:
        """Return all processes of the job by its mark; a forked one ends with the
        process that requested it.
        """
        mark, marked = f"HPCFL_JOB={self._place}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    marked.append(int(folder.name))
        return marked

    def ranks(self) -> list[int]:
        """Return the job's ranks, ascending."""
        found = [
            (int(path.name.removeprefix("rank-")), int(path.read_text()))
            for path in self._place.glob("rank-*")
            if not path.suffix
        ]
        return [pid for _, pid in sorted(found)]

    @staticmethod
    def signal(number: int, pids: list[int]):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def digest(folder: Path) -> str | None:
    """Return the digest of a run's newest checkpoint."""
    found = find_latest(folder / "checkpoints") if folder.exists() else None
    return found and found.digest


def round_of(folder: Path) -> int:
    """Return the round of the newest checkpoint, 0 without one."""
    found = find_latest(folder / "checkpoints") if folder.exists() else None
    return found.round if found else 0


def wait_for_round(job: Job, folder: Path, least: int):
    """Wait until a checkpoint of round ``least`` or later exists, or the job has ended."""
    deadline = time.monotonic() + PATIENCE
    while job.process.poll() is None and round_of(folder) < least:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def need_memory(gigabytes: int):
    """Skip the test on a machine with less free memory."""
    available = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if "MemAvailable" in line
    )
    if available < gigabytes << 20:
        pytest.skip(f"needs {gigabytes} GB of memory")
