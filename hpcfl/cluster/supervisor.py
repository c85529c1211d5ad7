"""The supervisor of a batch job: it starts the ranks, passes Slurm's warning on to them
and requeues the job.

Slurm warns a job before its time limit and before preemption. The ranks then finish
their round, write a checkpoint and exit with code 75. The job is requeued, and the same
command continues. If the ranks do not finish in time, the job is requeued anyway and
continues from its last checkpoint. A job whose ranks fail is not requeued. A user's own
batch script can end with this command too.
"""

import argparse
import json
import math
import os
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

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.cluster import slurm
from hpcfl.errors import RESUMABLE, RunFailure
from hpcfl.files import atomic, output, untrusted_files
from hpcfl.files.atomic import Damaged

RESERVE = 30.0  # seconds reserved for requeueing
TICK = 0.2  # seconds between two checks of the ranks
REASON_BYTES = 10_000  # limit for the ranks' failure reason
# factor by which a stop may take longer than the longest round and the last checkpoint
MARGIN = 1.1
LEAVING = 15.0  # seconds for ranks to receive a warning and to exit
EARLY = 60.0  # seconds by which Slurm may warn earlier than requested
REPEAT = 5.0  # seconds between two copies of the warning
WARNINGS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGXCPU)


@with_config(ConfigDict(extra="allow"))
class Record(TypedDict, total=False):
    """The file ``CELL.requeues``: notes of a cell's supervisors for later jobs and for
    ``hpcfl status``.

    Attributes:
        followers: job that continues each job.
        failure: reason why the last job failed, or None.
        rounds: number of rounds in the newest checkpoint when the last job began.
        fruitless: number of consecutive starts without a new checkpoint.
    """

    followers: dict[str, str]
    failure: str | None
    rounds: int
    fruitless: int


class Pace(TypedDict):
    """The file ``CELL.requeues.pace``, which rank 0 writes after each checkpoint.

    Attributes:
        round: seconds of the longest round.
        checkpoint: seconds of the last checkpoint.
    """

    round: float
    checkpoint: float


@dataclass
class Supervisor:
    """Callable of a job; submitit pickles it and calls it in the job.

    Attributes:
        command: command that starts the ranks.
        folder: results folder of the ranks.
        record: file of the cell's ``Record``.
        warning: seconds between Slurm's warning and the end of the job.
        max_requeues: largest number of requeues without a new checkpoint.
        again: batch script with arguments for a job that continues this one; empty if
            jobs are not continued automatically.
    """

    command: list[str]
    folder: str
    record: str
    warning: float
    max_requeues: int
    again: list[str]
    # times of the monotonic clock: first warning, latest begin of requeueing, and time
    # limit of the job
    _warned: float | None = None
    _too_late_at: float = math.inf
    _end: float = math.inf
    _limit: float = math.inf  # seconds from the start to the time limit
    _is_noted: bool = False  # whether a line on the warning was printed

    def __call__(self) -> None:
        """Return when the run is complete; exit with code 75 when the job is requeued.

        Raises RunFailure.
        """
        try:
            self._run()
        except RunFailure as error:
            self._note(failure=str(error))
            raise

    def _run(self) -> None:
        self._count_start()
        with _handle_warnings(self._warn):
            code = self._watch(self._start())
            if code in (None, RESUMABLE) or (code and self._warned is not None):
                self._continue(code)
        if code:
            done = count_rounds(Path(self.folder))
            why = f"{_describe_ending(code)}{self._read_reason()}"
            raise RunFailure(f"{why}; a new submission continues from round {done}")

    @property
    def _reason_file(self) -> Path:
        """Return the file into which a failing rank writes its reason."""
        return Path(f"{self.record}.reason").absolute()

    @property
    def _pace_file(self) -> Path:
        """Return the file into which rank 0 writes its ``Pace``, also for later jobs."""
        return Path(f"{self.record}.pace").absolute()

    def _start(self) -> "subprocess.Popen[bytes]":
        """Start the ranks. Raises RunFailure if the program is missing."""
        self._reason_file.unlink(missing_ok=True)
        environment = {
            **os.environ,
            output.REASON: str(self._reason_file),
            output.PACE: str(self._pace_file),
        }
        command = self.command
        if slurm.count_restarts():  # a job that continues must not start over
            command = [word for word in command if word != "--fresh"]
        with atomic.explain_errors(Path(command[0])):
            return subprocess.Popen(command, env=environment)

    def _read_reason(self) -> str:
        """Return the reason of the first failing rank after a colon, or ""."""
        try:
            reason = untrusted_files.read_bytes(self._reason_file, REASON_BYTES)
        except (FileNotFoundError, Damaged):
            return ""
        return f": {reason.decode(errors='replace')}"

    def _watch(self, process: "subprocess.Popen[bytes]") -> int | None:
        """Wait for the ranks; return their exit code, or None if they still run at the
        end.

        A warning is sent repeatedly, because a launcher that is still starting ranks
        loses it.
        """
        last_sent = last_look = 0.0
        self._limit = self._find_end()
        while process.poll() is None and time.monotonic() < self._too_late_at:
            if time.monotonic() - last_look > REPEAT:
                self._warn_in_time()
                last_look = time.monotonic()
            if self._warned is not None and time.monotonic() - last_sent > REPEAT:
                # srun and mpiexec both pass this signal on to the ranks
                process.send_signal(signal.SIGUSR1)
                last_sent = time.monotonic()
            time.sleep(TICK)
        return process.returncode

    def _warn(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal of Slurm, before the time limit or a preemption."""
        left = self._end - time.monotonic()
        of_limit = self.warning < left < self.warning + EARLY
        self._stop(left if of_limit else self.warning)

    def _stop(self, seconds: float) -> None:
        """Stop the ranks, because the job ends in ``seconds``; later calls have no
        effect.
        """
        if self._warned is None:
            self._warned = time.monotonic()
            self._too_late_at = self._warned + max(seconds / 2, seconds - RESERVE)

    def _find_end(self) -> float:
        """Query the end of the job; return the seconds until then."""
        left = slurm.find_seconds_left()
        left = math.inf if left is None else left
        self._end = time.monotonic() + left
        return left

    def _warn_in_time(self) -> None:
        """Stop the ranks before Slurm's warning if a round and a checkpoint need more
        time.

        This takes at most half of the job. Slurm is queried again, because the limit
        may have been changed.
        """
        try:
            pace = untrusted_files.read_json(self._pace_file, Pace)
        except (FileNotFoundError, Damaged):
            return
        needed = MARGIN * (pace["round"] + pace["checkpoint"]) + LEAVING + RESERVE
        if needed > self.warning and not self._is_noted:
            self._is_noted = True
            _say(describe_pace(pace, needed, self.warning, self._limit))
        is_near = needed > self._end - time.monotonic()
        if self._warned is None and self.warning < needed < self._limit / 2 and is_near:
            left = self._find_end()
            if needed > left:
                _say(f"the time limit is in {left:.0f} s; stopping after this round")
                self._stop(left)

    def _count_start(self) -> None:
        """Count consecutive starts without a new checkpoint. Raises RunFailure for too
        many.
        """
        done, before = count_rounds(Path(self.folder)), _read(Path(self.record))
        in_vain = slurm.count_restarts() > 0 and before.get("rounds") == done
        fruitless = before.get("fruitless", 0) + 1 if in_vain else 0
        self._note(rounds=done, fruitless=fruitless, failure=None)
        if fruitless > self.max_requeues:
            raise RunFailure(
                f"requeued {fruitless} times without a new checkpoint (round {done}), more than "
                f"max_requeues = {self.max_requeues}: a round, or the start before the first "
                "round, needs more time than the job has; raise the profile's time and warning, "
                "or use more ranks"
            )

    def _note(self, **entries: Any) -> None:
        """Set entries of the ``Record``; a full disk is ignored."""
        path = Path(self.record)
        with suppress(OSError, RunFailure):
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(path, json.dumps(_read(path) | entries).encode())

    def _continue(self, code: int | None) -> NoReturn:
        """Requeue the job, unless the user has ended it, and exit with code 75.

        Args:
            code: exit code of the ranks; None if they still run.

        Raises:
            RunFailure: The job cannot be requeued.
        """
        job = slurm.find_own_job()
        if job is None:
            raise RunFailure("stopped early; the same command continues")
        queued = (slurm.find_jobs([job]) or {}).get(job)
        if code == RESUMABLE:
            when = "in time"
        elif code is None:
            when = "in the middle of a round, which will be repeated"
        else:
            ending = _describe_ending(code)
            when = f"by the warning before the ranks could handle it ({ending})"
        if not self.again:
            raise RunFailure(
                f"job {job} stopped {when}, and its profile has no-requeue; the same "
                "command continues"
            )
        # printed before the requeue, during which Slurm may end this process
        _say(f"job {job} stopped {when}")
        if queued and queued.state not in ("RUNNING", "PREEMPTED", "SUSPENDED"):
            _say(f"job {job} was ended by scancel or scontrol requeue")
        elif slurm.requeue(job):
            _say(f"job {job} requeued")
            # wait until Slurm ends the job; a job that exits itself may count as failed
            time.sleep(RESERVE)
        elif follower := slurm.submit_after(
            job, self.again, slurm.count_restarts() + 1
        ):
            followers = _read(Path(self.record)).get("followers", {})
            self._note(followers=followers | {job: follower})
            _say(f"job {job} cannot be requeued from here; job {follower} follows it")
        else:
            raise RunFailure(
                f"job {job} cannot be requeued: neither scontrol nor sbatch works on this node; "
                "the same command continues"
            )
        raise SystemExit(RESUMABLE)


def describe_pace(pace: Pace, needed: float, warning: float, limit: float) -> str:
    """Return a line on a warning that is too short.

    Args:
        pace: durations of the run.
        needed: seconds from a warning to the end of the job.
        warning: seconds of the profile's warning.
        limit: seconds from the start to the time limit; infinity if unknown.
    """
    effect = "a warning of Slurm loses the rounds since the last checkpoint"
    if needed < limit / 2 < math.inf:
        effect = f"this job stops itself {needed:.0f} s before its time limit"
    return (
        f"a round takes up to {pace['round']:.0f} s and a checkpoint "
        f"{pace['checkpoint']:.0f} s; set warning = {math.ceil(needed / 60) * 60} in "
        f"the profile (now {warning:g}); {effect}"
    )


def count_rounds(folder: Path) -> int:
    """Return the round of the newest checkpoint in a folder, or the sum over the runs
    of a sweep or a tuning.
    """
    newest: dict[Path, int] = {}
    for above in ("", "*/", "*/*/"):
        for path in folder.glob(f"{above}checkpoints/manifest-*.json"):
            number = path.stem.rpartition("-")[2]
            newest[path.parent] = max(
                newest.get(path.parent, 0), int(number) if number.isdecimal() else 0
            )
    return sum(newest.values())


@contextmanager
def _handle_warnings(
    handler: Callable[[int, FrameType | None], None],
) -> Iterator[None]:
    """Handle Slurm's warnings by ``handler`` inside the block."""
    before = {number: signal.signal(number, handler) for number in WARNINGS}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _describe_ending(code: int) -> str:
    """Return a description of the ranks' end, from their launcher's exit code.

    A negative code is a signal.
    """
    return (
        f"the ranks were ended by {signal.Signals(-code).name}"
        if code < 0
        else f"the ranks ended with code {code}"
    )


def _read(path: Path) -> dict[str, Any]:
    """Return the entries of a ``Record``; empty if it cannot be read."""
    try:
        return dict(untrusted_files.read_json(path, Record))
    except (FileNotFoundError, Damaged):
        return {}


def _say(text: str) -> None:
    print(f"hpcfl: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run ``python -m hpcfl.cluster.supervisor [options] -- command``.

    This is the last line of a batch script.
    """
    parser = argparse.ArgumentParser(
        prog="python -m hpcfl.cluster.supervisor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        dest="folder",
        required=True,
        metavar="DIR",
        help="results folder of the command",
    )
    parser.add_argument(
        "--record",
        required=True,
        metavar="FILE",
        help="file that counts requeues; created if missing",
    )
    parser.add_argument(
        "--again",
        required=True,
        metavar="WORDS",
        type=shlex.split,
        help="this batch script and its arguments, quoted; submitted if requeueing is "
        "impossible; empty: the job is not continued",
    )
    parser.add_argument(
        "--warning",
        type=float,
        default=120.0,
        help="seconds, as in '#SBATCH --signal=B:USR2@SECONDS'",
    )
    parser.add_argument(
        "--max-requeues",
        type=int,
        default=3,
        help="largest number of requeues without a new checkpoint",
    )
    parser.add_argument("command", nargs="+", help="command that starts the ranks")
    output.guard()
    given = parser.parse_args()
    supervisor = Supervisor(**vars(given))
    try:
        supervisor()
    except RunFailure as error:
        _say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
