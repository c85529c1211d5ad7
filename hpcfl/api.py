"""hpcfl from Python: ``hpcfl.run`` runs an experiment, ``hpcfl.load`` reads the results in a folder."""

from functools import cache
from pathlib import Path
from typing import Any

from hpcfl.commands.experiments import run_file, run_one, run_table
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.mpi import connect
from hpcfl.experiment.config import Config
from hpcfl.report import summary
from hpcfl.report.summary import Run


def run(config: Config | dict[str, Any] | str | Path, out: str | Path | None = None,
        fresh: bool = False) -> Run | dict[str, Run]:
    """Run an experiment, or continue it where it stands, and return what ``load`` returns.

    config: an experiment file, its content as a nested dictionary, or a Config.
    out: the results folder, by default ``runs/NAME``.
    fresh: move an old results folder aside and start over.

    Under mpiexec every rank calls this. Raises UserError for bad input, RunFailure for a run that had to end,
    and Interrupted after a stop signal, when the state is saved.
    """
    communicator, folder = _communicator(), None if out is None else Path(out)
    if isinstance(config, Config):
        folder = folder or Path("runs") / config.name
        run_one(config, folder, fresh, communicator)
    elif isinstance(config, dict):
        folder = run_table(config, "configuration", folder, fresh, communicator)
    else:
        folder = run_file(Path(config), (), folder, fresh, communicator)
    return load(folder)


def load(folder: str | Path) -> Run | dict[str, Run]:
    """Read the run in a folder, finished or not; for a sweep's folder, return its runs by name.

    Raises UserError if there is none.
    """
    folder = Path(folder)
    runs = summary.load_all(folder)
    return {run.label: run for run in runs} if summary.is_sweep(folder, runs) else runs[0]


@cache
def _communicator() -> Communicator:
    """The communicator of this process, which keeps one for all its calls."""
    return connect()
