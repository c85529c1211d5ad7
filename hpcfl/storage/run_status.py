"""Progress of a run, computed from the files in its folder.

``run``, ``show``, ``status``, ``table``, ``submit`` and the Python interface all use
this module, so that they agree. Each step of a run ends with a file that is published
by rename. The last of these files determines the stage:

* claimed: ``run.json``; the folder belongs to an experiment
* prepared: ``partition.h5``; everything was built and checked, round 1 may begin
* playing: a round in the metrics or in a checkpoint
* played: the checkpoint of the last round, R
* finished: the scores of the state after the last aggregation, round R + 1, in the
  merged metrics
"""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hpcfl.storage import lock, run_folder
from hpcfl.storage.manifest import find_latest, list_newest_first
from hpcfl.storage.results import Results


class RunStage(IntEnum):
    """Stages of a run, in order."""

    EMPTY = 0
    CLAIMED = 1
    PREPARED = 2
    PLAYING = 3
    PLAYED = 4
    FINISHED = 5


@dataclass(frozen=True)
class RunStatus:
    """Status of the run in a folder.

    Attributes:
        stage: stage of the run.
        done: number of rounds in the newest readable checkpoint, 0 without one.
        digest: digest of the state in that checkpoint, or None.
        completed: numbers of rounds after which the run was scored; several if it was
            prolonged.
        is_locked: Whether a process has locked the folder.
        failure: reason why the last attempt failed; None without a failure, or if the
            run is finished.
        checkpoints_lost: Whether checkpoints exist, but none is readable.
    """

    stage: RunStage
    done: int
    digest: str | None
    completed: list[int]
    is_locked: bool
    failure: str | None
    checkpoints_lost: bool = False

    @property
    def finished(self) -> bool:
        return self.stage == RunStage.FINISHED

    @property
    def state(self) -> str:
        """Return one word: the stage of a finished or active run, else failed, stopped
        or empty.
        """
        if self.finished or self.is_locked:
            return self.stage.name.lower()
        return "failed" if self.failure else "stopped" if self.stage else "empty"


def look(
    folder: Path, rounds_requested: int | None, results: Results, run: str | None = None
) -> RunStatus:
    """Return the status of a folder's run; nothing is changed.

    Args:
        folder: folder of the run.
        rounds_requested: number of rounds of the run, None if unknown.
        results: result of ``results.read``.
        run: fingerprint of the run, None if unknown.

    Raises:
        RunFailure: The checkpoints cannot be listed.
    """
    checkpoints = folder / run_folder.CHECKPOINTS
    checkpoint = find_latest(checkpoints, run)
    done = checkpoint.round if checkpoint else 0
    stage = _find_stage(folder, rounds_requested, done, results)
    return RunStatus(
        stage=stage,
        done=done,
        digest=checkpoint.digest if checkpoint else None,
        completed=results.completed,
        is_locked=lock.is_held(folder),
        failure=None if stage == RunStage.FINISHED else run_folder.read_failure(folder),
        checkpoints_lost=checkpoint is None and bool(list_newest_first(checkpoints)),
    )


def _find_stage(
    folder: Path, rounds_requested: int | None, done: int, results: Results
) -> RunStage:
    if rounds_requested is not None and run_folder.is_finished(
        rounds_requested, done, results.completed
    ):
        return RunStage.FINISHED
    if rounds_requested is not None and done >= rounds_requested:
        return RunStage.PLAYED
    if done or results.rounds.size:
        return RunStage.PLAYING
    if (folder / run_folder.PARTITION).exists():
        return RunStage.PREPARED
    return RunStage.CLAIMED if (folder / run_folder.RUN).exists() else RunStage.EMPTY
