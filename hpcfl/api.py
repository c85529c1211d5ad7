"""hpcfl from Python: ``hpcfl.run`` runs an experiment, ``hpcfl.load`` reads the results in a folder."""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from hpcfl.commands.experiments import run_file, run_one, run_table
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.mpi import connect
from hpcfl.experiment.config import Config, read
from hpcfl.report import summary
from hpcfl.report.summary import Run
from hpcfl.trained.experiment import named


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
        folder, table = folder or Path("runs") / config.name, config.resolved()
        run_one(config, folder, fresh, communicator)
    elif isinstance(config, dict):
        folder, table = run_table(config, "configuration", folder, fresh, communicator), config
    else:
        folder, table = run_file(Path(config), (), folder, fresh, communicator), read(config)
    return load(folder, named(table))


def load(folder: str | Path, own: Collection[str] = ()) -> Run | dict[str, Run]:
    """Read the run in a folder, finished or not; for a sweep's folder, return its runs by name.

    own: the names, ``module:object``, of your own methods, models and data sets that may be imported when
    models are asked for; nothing is imported only because a folder names it.

    Raises UserError if there is none.
    """
    folder = Path(folder)
    runs = summary.load_all(folder, own)
    return {run.label: run for run in runs} if summary.is_sweep(folder, runs) else runs[0]


@cache
def _communicator() -> Communicator:
    """The communicator of this process, which keeps one for all its calls."""
    return connect()
