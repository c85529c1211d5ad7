"""One process in a batch job: it starts the ranks, passes Slurm's warning on to them, and sends the job
back to the queue.

Slurm warns (time limit, preemption) → the ranks finish their round, write a checkpoint and leave
with code 75 → the job is requeued and the same command continues. If the ranks are not ready
in time the job is requeued anyway and continues from its last checkpoint. A failure is not requeued.
``python -m hpcfl.cluster.supervisor --help`` for batch scripts.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hpcfl.cluster import slurm
from hpcfl.cluster.submission_folder import Record
from hpcfl.cluster.witness import Witness
from hpcfl.errors import RunFailure
from hpcfl.files import atomic, foreign
from hpcfl.files.atomic import Damaged

CONTINUE = 75
RESERVE = 30.0  # seconds that requeueing itself may take
TICK = 0.2  # seconds between two looks at the ranks
REPEAT = 5.0  # seconds after which the ranks are told again
WARNINGS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGXCPU)


@dataclass
class Supervisor:
    """``command`` starts the ranks, ``folder`` holds their results, ``record`` is a file for the
    count of requeues.

    ``warning``: seconds between Slurm's signal and the end; ``again``: a batch script and its arguments,
    for a job that follows this one.
    """

    command: list[str]
    folder: str
    record: str
    warning: float
    max_requeues: int
    again: list[str]
    _warned: float | None = None

    def __call__(self) -> None:
        """Returns when the run is complete, leaves with 75 when the job is requeued. Raises RunFailure."""
        try:
            self._run()
        except RunFailure as error:
            self._note(failure=str(error))
            raise

    def _run(self) -> None:
        self._count()
        with _handling(self._warn):
            witness = Witness(self.command)
            code = self._watch(witness.process)
            said = "" if code is None else witness.reason()
            if code in (None, CONTINUE) or (code and self._warned is not None):
                self._continue(code)
        if code:
            why = f"{_ending(code)}: {said}" if said else _ending(code)
            raise RunFailure(f"{why}; submitted again it continues from round {progress(Path(self.folder))}")

    def _watch(self, process: "subprocess.Popen[str]") -> int | None:
        """Until the ranks have left: their code; None if they are still there when the time is up.

        They are told of a warning again and again, because a launcher that is just starting them
        passes nothing on.
        """
        told = 0.0
        while process.poll() is None and not self._too_late():
            if self._warned is not None and time.monotonic() - told > REPEAT:
                process.send_signal(signal.SIGUSR1)  # srun and mpiexec both pass it on to the ranks
                told = time.monotonic()
            time.sleep(TICK)
        return process.returncode

    def _warn(self, number: int, frame: FrameType | None) -> None:
        if self._warned is None:
            self._warned = time.monotonic()

    def _too_late(self) -> bool:
        patience = max(self.warning / 2, self.warning - RESERVE)
        return self._warned is not None and time.monotonic() - self._warned > patience

    def _count(self) -> None:
        """Refuse to go on for ever: a limited number of starts in the queue's care may bring
        no new checkpoint."""
        done, before = progress(Path(self.folder)), _read(Path(self.record))
        again = slurm.restarts() > 0 and before.get("rounds") == done
        fruitless = before.get("fruitless", 0) + 1 if again else 0
        self._note(rounds=done, fruitless=fruitless, failure=None)
        if fruitless > self.max_requeues:
            raise RunFailure(f"requeued {fruitless} times without a new checkpoint (round {done}), more than "
                             f"max_requeues = {self.max_requeues}: a round, or what comes before the first "
                             "one, needs more time than the job has; raise the profile's time and warning, "
                             "or use more ranks")

    def _note(self, **entries: Any) -> None:
        """Keep something for the next start and for ``hpcfl status``; a full disk is no reason to stop."""
        path = Path(self.record)
        with suppress(OSError, RunFailure):
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(path, json.dumps(_read(path) | entries).encode())

    def _continue(self, code: int | None) -> NoReturn:
        """Back to the queue, unless the user has ended the job or there is no queue."""
        job = slurm.own_job()
        waiting = slurm.jobs([job]) if job else {}
        if job is None:
            raise RunFailure("stopped early; the same command continues")
        when = ("in time" if code == CONTINUE else "in the middle of a round, which will be repeated"
                if code is None else (f"by the warning before the ranks could take it ({_ending(code)})"))
        # before all else: Slurm may end this process while it is being requeued
        _say(f"job {job} stopped {when}")
        if (waiting is not None and waiting.get(job)
                and waiting[job].state not in ("RUNNING", "PREEMPTED", "SUSPENDED")):
            _say(f"job {job} is ended by scancel or scontrol requeue")
        elif slurm.requeue(job):
            _say(f"job {job} requeued")
            time.sleep(RESERVE)  # Slurm ends the job; one that ends by itself meanwhile may count as failed
        elif follower := slurm.submit_after(job, self.again, slurm.restarts() + 1):
            self._note(followers=_read(Path(self.record)).get("followers", {}) | {job: follower})
            _say(f"job {job} cannot be requeued from here; job {follower} follows it")
        else:
            raise RunFailure(f"job {job} cannot be requeued: neither scontrol nor sbatch works on this node; "
                             "the same command continues")
        raise SystemExit(CONTINUE)


def progress(folder: Path) -> int:
    """Rounds in the newest checkpoints below ``folder``: of one run, or of all cells of a sweep together."""
    newest: dict[Path, int] = {}
    for pattern in ("checkpoints/manifest-*.json", "*/checkpoints/manifest-*.json"):
        for path in folder.glob(pattern):
            number = path.stem.rpartition("-")[2]
            newest[path.parent] = max(newest.get(path.parent, 0), int(number) if number.isdecimal() else 0)
    return sum(newest.values())


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside the block Slurm's warnings call ``handler``."""
    before = {number: signal.signal(number, handler) for number in WARNINGS}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _ending(code: int) -> str:
    return (f"the ranks were ended by {signal.Signals(-code).name}" if code < 0
            else f"the ranks ended with code {code}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(foreign.read_json(path, Record))
    except (FileNotFoundError, Damaged):
        return {}


def _say(text: str) -> None:
    print(f"hpcfl: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """``python -m hpcfl.cluster.supervisor [options] -- command``, the last line of a batch script."""
    parser = argparse.ArgumentParser(prog="python -m hpcfl.cluster.supervisor", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="DIR",
                        help="the results folder that the command writes")
    parser.add_argument("--record", required=True, metavar="FILE",
                        help="where requeues are counted; made where missing")
    parser.add_argument("--again", required=True, metavar="WORDS", type=shlex.split,
                        help="this batch script and its arguments, quoted, submitted again where requeueing "
                             "is impossible")
    parser.add_argument("--warning", type=float, default=120.0,
                        help="seconds, as in '#SBATCH --signal=B:USR2@SECONDS'")
    parser.add_argument("--max-requeues", type=int, default=3, help="times without a new checkpoint")
    parser.add_argument("command", nargs="+", help="starts the ranks")
    given = parser.parse_args()
    supervisor = Supervisor(given.command, given.out, given.record, given.warning,
                            given.max_requeues, given.again)
    try:
        supervisor()
    except RunFailure as error:
        _say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
