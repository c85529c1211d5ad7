"""Faults that a run must survive. Each strikes a job that is running and says what was done."""

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from job import Job

Strike = Callable[[Job, random.Random], str]
BLOCK = 4096  # bytes


def kill_rank(job: Job, chance: random.Random) -> str:
    rank, pid = chance.choice(sorted(job.ranks().items()))
    os.kill(pid, signal.SIGKILL)
    return f"rank {rank}"


def kill_launcher(job: Job, chance: random.Random) -> str:
    os.kill(job.process.pid, signal.SIGKILL)
    return "mpiexec"


def kill_job(job: Job, chance: random.Random) -> str:
    job.kill()
    return "all processes at once"


def terminate(job: Job, chance: random.Random) -> str:
    os.kill(job.process.pid, signal.SIGTERM)
    return "SIGTERM to mpiexec"


def stop_rank(job: Job, chance: random.Random) -> str:
    rank, pid = chance.choice(sorted(job.ranks().items()))
    os.kill(pid, signal.SIGSTOP)
    return f"rank {rank}"


def fill_disk(job: Job, chance: random.Random) -> str:
    """Only where the folder has a small disk of its own; the driver frees it when the job has ended."""
    with suppress(OSError), open(job.ballast, "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(BLOCK))
    return "no space left"


def truncate_checkpoint(job: Job, chance: random.Random) -> str:
    return _damage(job, chance, _newest_checkpoint(job), _cut)


def flip_checkpoint(job: Job, chance: random.Random) -> str:
    return _damage(job, chance, _newest_checkpoint(job), _flip)


def truncate_metrics(job: Job, chance: random.Random) -> str:
    return _damage(job, chance, _metrics(job), _cut)


def flip_metrics(job: Job, chance: random.Random) -> str:
    return _damage(job, chance, _metrics(job), _flip)


ALL: dict[str, Strike] = {
    "kill -9 of a rank": kill_rank, "kill -9 of mpiexec": kill_launcher, "kill -9 of the job": kill_job, "SIGTERM": terminate,
    "SIGSTOP of a rank": stop_rank, "full disk": fill_disk, "truncated checkpoint": truncate_checkpoint,
    "bit flip in a checkpoint": flip_checkpoint, "truncated metrics": truncate_metrics, "bit flip in the metrics": flip_metrics}


def _newest_checkpoint(job: Job) -> list[Path]:
    """The newest manifest and the files that only it needs."""
    manifests = job.manifests()
    if not manifests:
        return []
    needed = [{shard.name for shard in found.files} for _, found in manifests]
    return [manifests[0][0], *(job.folder / "checkpoints" / name for name in sorted(needed[0].difference(*needed[1:])))]


def _metrics(job: Job) -> list[Path]:
    return sorted([*job.folder.glob("metrics.h5"), *job.folder.glob("rounds/*.h5")])


def _damage(job: Job, chance: random.Random, files: list[Path], how: Callable[[bytearray, random.Random], bytes]) -> str:
    """Kill the job, then damage one of the files; those that it was about to remove may be gone."""
    job.kill()
    files = [path for path in files if path.exists() and path.stat().st_size]
    if not files:
        return "killed before there was a file to damage"
    path = chance.choice(files)
    path.write_bytes(how(bytearray(path.read_bytes()), chance))
    return path.name.partition("-")[0]


def _cut(data: bytearray, chance: random.Random) -> bytes:
    return bytes(data[:chance.randrange(len(data))])


def _flip(data: bytearray, chance: random.Random) -> bytes:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)
