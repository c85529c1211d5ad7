"""Faults that a run must survive. Each function starts the run of a scene, causes the
fault, and returns the outcome.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import judge
from inside import Strike
from job import Job, send
from scene import ROUNDS, Scene

GRACE = 45.0  # seconds from a fault to the end of the job, on a loaded machine
START_UP = 0.5  # approximate seconds from the start of a process to round 1
SCORING = 0.03  # approximate seconds from the last checkpoint to the end
NOBODY = 65534
LAST = f"manifest-{ROUNDS:08d}"  # its rename precedes the final scoring
LATE = "too late"  # the run had ended before
MOMENTS = ("start-up", "operation", "final scoring")
# approximate numbers of operations of a worker, and of the server after the last
# checkpoint
FEW = 16
BLOCK = 1 << 16  # bytes


@dataclass
class Outcome:
    """End of a job after a fault; the code is None if the job still ran after the grace
    time.
    """

    moment: str
    detail: str
    code: int | None
    output: str
    seconds: float
    wrong: list[str] = field(default_factory=list)


Fault = Callable[[Scene], Outcome]


def from_inside(scene: Scene, act: str, number: int = 0) -> Outcome:
    """Let a rank die or fail at its n-th operation, of the whole run or since the last
    checkpoint.
    """
    ranks = scene.ranks()
    strike = Strike("", scene.chance.randrange(max(1, ranks)), act=act, errno=number)
    last = scene.chance.random() < 0.2
    strike.number = scene.chance.randint(
        1, FEW if last or strike.rank else _operations(scene)
    )
    strike.after = LAST if last else ""
    job = scene.start(ranks, strike)
    moment = (
        "final scoring" if last else "start-up" if strike.number <= 12 else "operation"
    )
    detail = f"rank {strike.rank} of {job.ranks}, operation {strike.number}"
    outcome = end(job, moment, detail)
    if not job.struck():
        outcome.moment = LATE
    if act == "fail":
        outcome.wrong += judge.failed(outcome.code, outcome.output, os.strerror(number))
    else:
        outcome.wrong += judge.killed(outcome.code)
    return outcome


def kill_rank(scene: Scene) -> Outcome:
    job, moment = reach(scene, scene.ranks())
    rank, pid = scene.chance.choice(sorted(job.pids().items()))
    send(pid, signal.SIGKILL)
    return _end_killed(job, moment, f"rank {rank} of {job.ranks}")


def kill_launcher(scene: Scene) -> Outcome:
    job, moment = reach(scene, scene.chance.randint(1, scene.most_ranks))
    send(job.process.pid, signal.SIGKILL)
    return _end_killed(job, moment, f"mpiexec of {job.ranks}")


def kill_job(scene: Scene) -> Outcome:
    job, moment = reach(scene, scene.ranks())
    begun = time.monotonic()
    job.kill()
    return _end_killed(job, moment, f"all {job.ranks}", begun)


def ask_to_stop(scene: Scene, number: signal.Signals, times: int) -> Outcome:
    """Send a signal to the launched command, to one rank, or to all, as launchers and
    batch systems do.
    """
    job, moment = reach(scene, scene.ranks(), connected=True)
    pids = list(job.pids().values())
    targets = scene.chance.choice([[job.process.pid], pids, pids[:1], pids[-1:]])
    begun = time.monotonic()
    for _ in range(times):
        for pid in targets:
            send(pid, number)
        time.sleep(scene.chance.uniform(0, 0.05))
    to = (
        "what was started"
        if targets == [job.process.pid]
        else f"{len(targets)} of {job.ranks}"
    )
    outcome = end(job, moment, f"to {to}", begun)
    outcome.wrong += judge.stopped(
        outcome.code, number, times, moment == "start-up", job.ranks
    )
    return outcome


def freeze_rank(scene: Scene) -> Outcome:
    """Stop a rank. Once MPI has connected, its silence must be detected until all ranks
    have finalised. A rank that is stopped during its exit, when no other rank can
    detect it, continues later without a loss.
    """
    job, moment = reach(
        scene, scene.chance.randint(2, max(2, scene.most_ranks)), connected=True
    )
    rank, pid = scene.chance.choice(sorted(job.pids().items()))
    begun = time.monotonic()
    send(pid, signal.SIGSTOP)
    if job.left_alone(pid, GRACE):
        moment = LATE
        send(pid, signal.SIGCONT)
    outcome = end(job, moment, f"rank {rank} of {job.ranks}", begun)
    outcome.wrong += judge.failed(outcome.code, outcome.output, "silent")
    return outcome


def fill_disk(scene: Scene) -> Outcome:
    """Fill the disk until the job has ended."""
    ranks = scene.ranks()
    with _no_space(scene.place.parent / "ballast", wait := scene.chance.random() < 0.3):
        job, moment = reach(scene, ranks)
        begun = time.monotonic()
        if not wait:
            _fill(scene.place.parent / "ballast")
        detail = "full before" if wait else "full now"
        outcome = end(job, "start-up" if wait else moment, detail, begun)
    outcome.wrong += judge.failed(
        outcome.code, outcome.output, os.strerror(errno.ENOSPC)
    )
    return outcome


def limit_files(scene: Scene) -> Outcome:
    """Limit the length of files in bytes (``ulimit -f``)."""
    limit = scene.chance.randrange(4000, 60000)
    job = scene.start(0, Strike("", limit=limit))
    outcome = end(job, "operation", f"{limit} bytes")
    outcome.wrong += judge.failed(
        outcome.code, outcome.output, os.strerror(errno.EFBIG)
    )
    return outcome


def start_twice(scene: Scene) -> Outcome:
    """Start two jobs at once: one wins, the other waits for it or is refused."""
    begun, first = time.monotonic(), scene.start(scene.ranks())
    time.sleep(scene.chance.uniform(0, START_UP))
    second = scene.start(scene.ranks())
    codes = [first.end(GRACE), second.end(GRACE)]
    outcome = Outcome(
        "start-up",
        f"codes {codes[0]} and {codes[1]}",
        max(codes, key=str),
        f"{first.output}\n{second.output}",
        time.monotonic() - begun,
    )
    outcome.wrong += judge.twice(scene, codes, [first, second])
    return outcome


def forbid(scene: Scene) -> Outcome:
    """Run the command as another user, who may not write or not even read in the
    folder.
    """
    state = at_rest(scene)
    mode = scene.chance.choice([0o755, 0o700])
    scene.folder.mkdir(exist_ok=True)
    scene.folder.chmod(mode)
    before = scene.stamp()
    job = scene.start(0, Strike("", user=NOBODY))
    outcome = end(job, state, f"rights {mode:o}")
    if outcome.code != 0 or not scene.finished():
        outcome.wrong += judge.refused(outcome.code, job)
    outcome.wrong += judge.unchanged(before, scene.stamp())
    for command in ("show", "status", "table"):
        code, look = scene.look_as(NOBODY, command, str(scene.folder))
        outcome.wrong += judge.looked(code, look)
    scene.folder.chmod(0o755)
    return outcome


def refuse(
    scene: Scene, options: list[str], extra: dict[str, str] | None = None
) -> Outcome:
    """Run a command that cannot be executed in this folder."""
    state = at_rest(scene)
    while not any(one.round > 1 for _, one in scene.manifests()):
        state = at_rest(scene)
    before = scene.stamp()
    job = scene.start(0 if extra else scene.ranks(), None, *options, **(extra or {}))
    outcome = end(job, state, " ".join(options))
    if (
        not extra or outcome.code != 0 or not scene.finished()
    ):  # a complete run needs no MPI
        outcome.wrong += judge.refused(outcome.code, job)
    outcome.wrong += judge.unchanged(before, scene.stamp())
    return outcome


def at_rest(scene: Scene) -> str:
    """Bring the run into a state without living processes, killed at an operation or
    finished, and return it as a moment.
    """
    if scene.done and scene.chance.random() < 0.5:
        return "at rest, as left"
    strike, otherwise = None, "as it was"
    if scene.chance.random() >= 0.3:
        number = scene.chance.randint(1, scene.undisturbed.operations)
        strike = Strike("", number=number, act="kill")
        otherwise = f"killed at operation {number}"
    code = scene.start(0, strike).end(GRACE)
    return f"at rest, {'finished' if code == 0 else otherwise}"


def reach(scene: Scene, ranks: int, connected: bool = False) -> tuple[Job, str]:
    """Start the run and wait for a moment; with ``connected`` a moment after MPI has
    started.
    """
    moment = scene.chance.choice(MOMENTS)
    job = scene.start(ranks, plan_report(scene, moment))
    reached = (job.connected if connected else job.begun)() and (
        moment == "start-up" or job.struck()
    )
    time.sleep(scene.chance.uniform(0, START_UP if moment == "start-up" else SCORING))
    return job, moment if reached else LATE


def _operations(scene: Scene) -> int:
    """Return the approximate number of remaining operations of a run that may have
    begun before.
    """
    return scene.undisturbed.operations // (2 if scene.done else 1)


def plan_report(scene: Scene, moment: str) -> Strike | None:
    """Return the strike that reports a moment."""
    if moment == "start-up":
        return None
    if moment == "final scoring":
        return Strike("", number=1, after=LAST, act="report")
    return Strike("", number=scene.chance.randint(1, _operations(scene)), act="report")


def end(job: Job, moment: str, detail: str, begun: float | None = None) -> Outcome:
    """Wait for the end of a job after a fault at the time ``begun``, by default now."""
    begun = begun or time.monotonic()
    code = job.end(GRACE)
    return Outcome(moment, detail, code, job.output, time.monotonic() - begun)


def _end_killed(job: Job, *about) -> Outcome:
    outcome = end(job, *about)
    outcome.wrong += judge.killed(outcome.code)
    return outcome


@contextmanager
def _no_space(ballast: Path, at_once: bool):
    """Remove the free space inside the block."""
    try:
        if at_once:
            _fill(ballast)
        yield
    finally:
        ballast.unlink(missing_ok=True)


def _fill(ballast: Path):
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(BLOCK)):
            pass


def _signals() -> dict[str, Fault]:
    return {
        f"{number.name} {word}": partial(ask_to_stop, number=number, times=times)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        for times, word in ((1, "once"), (2, "twice"))
    }


ALL: dict[str, Fault] = {
    "kill -9 at an operation": partial(from_inside, act="kill"),
    "kill -9 of a rank": kill_rank,
    "kill -9 of mpiexec": kill_launcher,
    "kill -9 of the job": kill_job,
    "no space at an operation": partial(from_inside, act="fail", number=errno.ENOSPC),
    "disk error at an operation": partial(from_inside, act="fail", number=errno.EIO),
    "no permission at an operation": partial(
        from_inside, act="fail", number=errno.EACCES
    ),
    **_signals(),
    "SIGSTOP of a rank": freeze_rank,
    "full disk": fill_disk,
    "limit on files": limit_files,
    "two starts at once": start_twice,
    "another user": forbid,
    "fewer rounds": partial(refuse, options=["--set", "rounds=1"]),
    "another configuration": partial(refuse, options=["--set", "seed=9"]),
    "unknown key": partial(refuse, options=["--set", "training.rl=1"]),
    "wrong world": partial(refuse, options=[], extra={"OMPI_COMM_WORLD_SIZE": "4"}),
}
