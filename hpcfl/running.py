"""A run from start to end: prepare, claim the folder, restore, play the rounds, leave with the agreed code."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hpcfl import provenance, trial
from hpcfl.communicator import Communicator, launched_world_size
from hpcfl.config import Config
from hpcfl.crew import muster
from hpcfl.errors import UserError
from hpcfl.federation import Federation
from hpcfl.preparation import Prepared, prepare
from hpcfl.report.progress import Progress
from hpcfl.storage import run_folder
from hpcfl.storage.agreement import agreed
from hpcfl.storage.checkpoint import Checkpoints, Restored, latest
from hpcfl.storage.metrics import MetricsWriter

PUBLISH_EVERY = 0.5  # seconds between files of metrics, each of which takes as long as a short round


def run(config: Config, folder: Path, communicator: Communicator, fresh: bool = False) -> None:
    """Start or continue the run in ``folder``. Collective. Raises UserError, RunFailure or Interrupted, on all ranks."""
    with agreed(communicator):
        check_world(communicator)
        prepared = trial.run(prepare(config, communicator), communicator)
    introduced = communicator.introduce(muster(communicator, prepared))
    communicator.watch(config.runtime.hang_after)
    with ExitStack() as stack:
        with agreed(communicator):
            if communicator.is_server:
                stack.enter_context(run_folder.claim(folder, config, fresh))
                prepared.split.save(folder / "partition.h5")
        checkpoints = Checkpoints(folder / "checkpoints", communicator)
        restored = checkpoints.restore(prepared.store)
        meta = {"fingerprint": config.fingerprint(), "rounds": config.rounds, "versions": provenance.versions(),
                "processor": provenance.processor(), "threads": config.runtime.threads,
                "kernel": [str(prepared.hardware.device.type), config.runtime.lanes]}
        progress = Progress(config, folder, communicator, prepared) if communicator.is_server else None
        with agreed(communicator):
            metrics = _metrics(config, folder, communicator, prepared)
            notes = _notes(config, restored, meta, prepared, metrics)
        done = restored.round if restored else 0
        server = prepared.server
        if restored and restored.server is not None:
            server = restored.server
            prepared.server.clear()  # its matrices would take memory to no purpose
        if progress is None:
            Federation(communicator, prepared, server, checkpoints, None, meta, _silent).run(done)
            return
        with progress:
            progress.start(done, introduced, notes)
            Federation(communicator, prepared, server, checkpoints, metrics, meta, progress.round).run(done)


def check_world(communicator: Communicator) -> None:
    """Refuse N worlds of size 1, which ``srun`` with the wrong MPI flavour silently starts. Raises UserError."""
    expected = launched_world_size()
    if expected is not None and expected != communicator.size:
        raise UserError(f"the launcher started {expected} ranks but MPI sees a world of {communicator.size}; start with "
                        "`srun --mpi=pmi2` (MPICH) or `srun --mpi=pmix` (Open MPI), or with this MPI's own mpiexec")


def _metrics(config: Config, folder: Path, communicator: Communicator, prepared: Prepared) -> MetricsWriter | None:
    if not communicator.is_server:
        return None
    header = {"config": config.resolved(), "ranks": communicator.size, **provenance.header(),
              "primary": prepared.method.primary}
    static = {"train_counts": prepared.setup.counts.long().numpy(), "test_counts": prepared.test_counts.long().numpy()}
    return MetricsWriter(folder, header, static, PUBLISH_EVERY)


def _notes(config: Config, restored: Restored | None, meta: dict[str, Any], prepared: Prepared,
           metrics: MetricsWriter | None) -> list[str]:
    """What a user should know before training goes on. Raises UserError if the run is already longer than asked for."""
    notes = [*prepared.notes, *(metrics.notes if metrics is not None else [])]
    if restored is None:
        return notes
    if restored.round > config.rounds:
        raise UserError(f"rounds = {config.rounds}: this run has done {restored.round} already; ask for more, or --fresh")
    if prepared.method.needs_rounds and restored.meta["rounds"] != config.rounds:
        raise UserError(f"rounds = {config.rounds}: this run was begun for {restored.meta['rounds']} and every round of "
                        f"{prepared.method.name} depends on that number; choose another --out or name, or --fresh")
    notes += restored.notes
    for key in ("versions", "processor", "threads", "kernel"):
        if restored.meta[key] != meta[key]:
            notes.append(f"continued with other {key} ({restored.meta[key]} before, {meta[key]} now): "
                         "the last bits of results may differ from an undisturbed run")
    return notes


def finished(config: Config, folder: Path) -> bool:
    """Whether the folder holds this very run, complete."""
    there = run_folder.read(folder)
    newest = latest(folder / "checkpoints") if there else None
    return (newest is not None and newest.meta["fingerprint"] == config.fingerprint()
            and newest.round == newest.meta["rounds"] == config.rounds)


def _silent(round: int, values: dict[str, Any]) -> None:
    """Workers show nothing."""
