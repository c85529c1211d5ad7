"""One start of an experiment under mpiexec, and what can be seen of it from outside."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from hpcfl.storage import manifest
from hpcfl.storage.atomic import Damaged
from hpcfl.storage.manifest import Manifest

MPIEXEC = Path(sys.executable).with_name("mpiexec")
START = 120.0  # seconds that a start may take on a loaded machine


class Job:
    """``mpiexec -n ranks hpcfl run file --out folder``; ``ballast`` is a file beside the results that fills their disk."""

    def __init__(self, file: Path, folder: Path, ranks: int, *options: str) -> None:
        self.folder, self.ballast = folder, folder.parent / "ballast"
        self._mark = uuid.uuid4().hex
        self._log = file.with_name(f"{self._mark}.log")
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "hpcfl", "run", file, "--out", folder, *options],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=file.parent,
                env={**os.environ, "HPCFL_CAMPAIGN": self._mark})

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def ranks(self) -> dict[int, int]:
        """rank → pid, from the job's first lines."""
        return {int(rank): int(pid) for rank, pid in re.findall(r"^rank (\d+) on \S+ \(pid (\d+)", self.said(), re.MULTILINE)}

    def rounds(self) -> int:
        """Of the newest round that is recorded or in a checkpoint."""
        names = [path.stem for path in (*self.folder.glob("rounds/*.h5"), *self.folder.glob("checkpoints/manifest-*.json"))]
        return max((int(name.rpartition("-")[2]) for name in names), default=0)

    def wait_for_rounds(self, more: int) -> bool:
        """Until so many rounds have been done since the start; False if the job ended before."""
        before, deadline = self.rounds(), time.monotonic() + START
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.ranks() and self.rounds() >= before + more:
                return True
            time.sleep(0.02)
        return False

    def end(self, patience: float) -> int | None:
        """The exit code, None for a job that is still there after ``patience`` seconds; that is killed then."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to everything that belongs to the job, until nothing is left."""
        while pids := self._pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        self.process.wait()

    def manifests(self) -> list[tuple[Path, Manifest]]:
        """The checkpoints that are intact to the last byte, newest first."""
        found = []
        for path in manifest.newest_first(self.folder / "checkpoints"):
            try:
                one = manifest.read(path)
                one.verify(self.folder / "checkpoints")
            except Damaged:
                continue
            found.append((path, one))
        return found

    def _pids(self) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"HPCFL_CAMPAIGN={self._mark}".encode() in (process / "environ").read_bytes()
                zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if mine and not zombie:
                found.append(int(process.name))
        return found
