"""Real jobs: the command under mpiexec, on the tiny data; processes are found by a mark in
their environment."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from hpcfl.storage.checkpoint import latest

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS.parent), str(TESTS)])
MPIEXEC = Path(sys.executable).with_name("mpiexec")
PATIENCE = 280  # seconds; generous, because a loaded machine takes long to start processes

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
    """A started command. ``ranks`` 0 is one process without mpiexec."""

    def __init__(self, ranks: int, arguments: list[str], program: tuple[str, ...] = ("-m", "hpcfl"),
                 **environment: str):
        self.mark = uuid.uuid4().hex
        launcher = [str(MPIEXEC), "-n", str(ranks)] if ranks else []
        self.process = subprocess.Popen(
            [*launcher, sys.executable, *program, "run", *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": PATHS, "HPCFL_TEST_JOB": self.mark, **environment})

    def wait(self) -> tuple[int, str]:
        """Exit code and output."""
        try:
            output, _ = self.process.communicate(timeout=PATIENCE)
        finally:
            self.signal(signal.SIGKILL, self.pids())
        return self.process.returncode, output

    def pids(self, ranks_only: bool = False) -> list[int]:
        """The job's processes, or only its ranks, ascending by rank."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"HPCFL_TEST_JOB={self.mark}".encode() in environment:
                rank = next((int(entry[9:]) for entry in environment if entry.startswith(b"PMI_RANK=")), -1)
                found.append((rank, int(folder.name)))
        return [pid for rank, pid in sorted(found) if rank >= 0 or not ranks_only]

    @staticmethod
    def signal(number: int, pids: list[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def digest(folder: Path) -> str | None:
    """Of a run's newest checkpoint."""
    found = latest(folder / "checkpoints") if folder.exists() else None
    return found and found.digest


def round_of(folder: Path) -> int:
    """The newest checkpoint's round, 0 without one."""
    found = latest(folder / "checkpoints") if folder.exists() else None
    return found.round if found else 0


def wait_for_round(job: Job, folder: Path, least: int) -> None:
    """Until a checkpoint of round ``least`` or later is there, or the job has ended."""
    deadline = time.monotonic() + PATIENCE
    while job.process.poll() is None and round_of(folder) < least:
        assert time.monotonic() < deadline
        time.sleep(0.01)
