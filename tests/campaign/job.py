"""A command, started directly or under mpiexec, and its state as visible from outside."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from inside import Strike
from zygote import Zygote

MPIEXEC = Path(sys.executable).with_name("mpiexec")
STRUCK = Path(__file__).with_name("struck.py")
START = 60.0  # maximal seconds of a start on a loaded machine
SETTLED = 5.0  # seconds in which mpiexec ends the rest of a failed job
PAUSE = 0.002  # seconds between two checks


@dataclass(frozen=True)
class Output:
    """Output of a command that ran in this process."""

    out: str
    err: str

    @property
    def output(self) -> str:
        return f"{self.out}\n{self.err}"


class Job:
    """``hpcfl ARGUMENTS`` on a number of ranks, 0 without mpiexec. ``strike`` describes
    the fault inside it.
    """

    def __init__(
        self,
        zygote: Zygote,
        ranks: int,
        arguments: list[str],
        strike: Strike,
        extra: dict[str, str] | None = None,
    ):
        self.ranks = max(1, ranks)
        self._place = Path(tempfile.mkdtemp(dir=zygote.folder))
        self._place.chmod(0o777)
        launcher = [MPIEXEC, "-n", str(ranks)] if ranks else []
        with (
            open(self._place / "out", "wb") as out,
            open(self._place / "err", "wb") as err,
        ):
            self.process = subprocess.Popen(
                [*launcher, zygote.python, STRUCK, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=zygote.folder,
                env={
                    **os.environ,
                    **(extra or {}),
                    "HPCFL_JOB": str(self._place),
                    "HPCFL_STRIKE": json.dumps(asdict(strike)),
                },
            )

    @property
    def out(self) -> str:
        return (self._place / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self._place / "err").read_text(errors="replace")

    @property
    def output(self) -> str:
        return f"{self.out}\n{self.err}"

    def pids(self) -> dict[int, int]:
        """Return rank → pid of the ranks that have begun."""
        return {
            int(path.name.removeprefix("rank-")): int(path.read_text())
            for path in self._place.glob("rank-*")
            if not path.suffix
        }

    def operations(self) -> int:
        """Return the number of input/output operations of a job that has ended by
        itself.
        """
        return int((self._place / "operations").read_text())

    def begun(self) -> bool:
        """Wait until all ranks have begun; return False if the job ended before."""
        return self._wait(lambda: len(self.pids()) == self.ranks)

    def connected(self) -> bool:
        """Wait until MPI has started on all ranks; return False if the job ended
        before.
        """
        return self._wait(
            lambda: len(list(self._place.glob("connected-*"))) == self.ranks
        )

    def struck(self) -> bool:
        """Wait until the reported operation is reached; return False if the job ended
        before.
        """
        return self._wait((self._place / "struck").exists)

    def end(self, patience: float) -> int | None:
        """Return the exit code, or None for a job that still ran after ``patience``
        seconds and was killed then.
        """
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def left_alone(self, pid: int, patience: float) -> bool:
        """Return whether all other ranks have exited and the job waits for this one;
        return False if it ends before.
        """
        deadline, since = time.monotonic() + patience, time.monotonic()
        while self.process.poll() is None and time.monotonic() < deadline:
            if any(_alive(other) for other in self.pids().values() if other != pid):
                since = time.monotonic()
            elif time.monotonic() - since > SETTLED:
                return True
            time.sleep(PAUSE)
        return False

    def kill(self):
        """Send SIGKILL to all processes of the job until none is left."""
        while pids := [*self._launcher_pids(), *filter(_alive, self.pids().values())]:
            for pid in pids:
                send(pid, signal.SIGKILL)
            time.sleep(PAUSE)
            self.process.poll()
        self.process.wait()

    def _wait(self, reached: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + START
        while not reached() and time.monotonic() < deadline:
            if self.process.poll() is not None:
                return reached()
            time.sleep(PAUSE)
        return reached()

    def _launcher_pids(self) -> list[int]:
        """Return the pids of mpiexec, its proxies and shims, by the mark in their
        environment.
        """
        mark, found = f"HPCFL_JOB={self._place}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes() and _alive(
                    int(process.name)
                ):
                    found.append(int(process.name))
        return found


def send(pid: int, number: int):
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False
