"""How far the run in a folder has come: derived from what lies on the disk, for everyone who asks.

``run``, ``show``, ``status``, ``table``, ``submit`` and Python all look here, so that they cannot disagree.
Each step of a run ends with one file that is published whole, by rename, and its being there is the state:

    claimed    ``run.json``: the folder belongs to an experiment
    prepared   ``partition.h5``: everything was built and checked, round 1 may begin
    playing    a round in the metrics or in a checkpoint
    played     the checkpoint of the last round, R
    finished   the scores of the state after the last aggregation, round R + 1, in the merged metrics
"""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hpcfl.storage import lock, run_folder
from hpcfl.storage.checkpoint import latest
from hpcfl.storage.results import Results


class Stage(IntEnum):
    """How far a run has come, each stage behind the one before."""

    EMPTY = 0
    CLAIMED = 1
    PREPARED = 2
    PLAYING = 3
    PLAYED = 4
    FINISHED = 5


@dataclass(frozen=True)
class Life:
    """stage: how far the run has come. asked: its number of rounds R, None where nothing says so. done:
    rounds in the newest checkpoint that can be read, 0 without one. digest: of the state in it. completed:
    numbers of rounds after which the run was scored, several where it was prolonged. held: a process has the
    folder now. failure: why the last attempt failed.
    """

    stage: Stage
    asked: int | None
    done: int
    digest: str | None
    completed: list[int]
    held: bool
    failure: str | None

    @property
    def finished(self) -> bool:
        return self.stage == Stage.FINISHED

    @property
    def state(self) -> str:
        """One word: finished; while a process has the folder how far it has come; else failed,
        stopped, or empty."""
        if self.finished or self.held:
            return self.stage.name.lower()
        return "failed" if self.failure else "stopped" if self.stage else "empty"


def look(folder: Path, asked: int | None, results: Results) -> Life:
    """``asked``: the run's number of rounds; ``results``: what ``results.read`` found. Changes nothing.
    Raises RunFailure."""
    checkpoint = latest(folder / run_folder.CHECKPOINTS)
    done = checkpoint.round if checkpoint else 0
    stage = _stage(folder, asked, done, results)
    return Life(stage, asked, done, checkpoint.digest if checkpoint else None,
                results.completed, lock.held(folder),
                None if stage == Stage.FINISHED else run_folder.failure(folder))


def _stage(folder: Path, asked: int | None, done: int, results: Results) -> Stage:
    if asked is not None and run_folder.is_finished(asked, done, results.completed):
        return Stage.FINISHED
    if asked is not None and done >= asked:
        return Stage.PLAYED
    if done or results.rounds.size:
        return Stage.PLAYING
    if (folder / run_folder.PARTITION).exists():
        return Stage.PREPARED
    return Stage.CLAIMED if (folder / run_folder.RUN).exists() else Stage.EMPTY
