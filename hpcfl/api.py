"""``hpcfl.run``: run an experiment from Python.

The module keeps the communicator and a lock: MPI can be initialised only once in a
process, but a script may call ``hpcfl.run`` several times, also from threads.
"""

import atexit
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcfl.commands.experiments import (
    RunPlan,
    agree_on_plan,
    make_plan,
    run_plan,
)
from hpcfl.commands.run import PREPARING, OnRound
from hpcfl.communication.communicator import Communicator, Guest
from hpcfl.communication.connection import connect
from hpcfl.errors import EXPECTED, RESUMABLE, Interrupted, RunFailure, UserError
from hpcfl.experiment import plugins
from hpcfl.experiment.config import Config, read
from hpcfl.experiment.sections import Runtime
from hpcfl.files import atomic, output
from hpcfl.simulation import torch_settings
from hpcfl.trained.loading import load, load_all, parse_path
from hpcfl.trained.run import Run

__all__ = ["Interrupted", "RunFailure", "UserError", "load", "load_all", "run"]

# exit codes of a script that fails under mpiexec, equal to those of the command
CODES = ((UserError, 2), (Interrupted, RESUMABLE), (RunFailure, 1))
_connected: list[Communicator] = []  # the communicator, after the first call of ``run``

_one_run = threading.Lock()


@torch_settings.plain()
def run(
    config: Config | dict[str, Any] | str | Path,
    out: str | Path | None = None,
    fresh: bool = False,
    on_round: OnRound | None = None,
    progress: bool = True,
) -> Run | dict[str, Run]:
    """Run or continue an experiment and return its results as ``load`` does.

    Under mpiexec every rank must call this function. A process runs one experiment at a
    time. A run in another thread than the main one receives no signals, so a notebook's
    interrupt does not stop it; an exception in ``on_round`` does. During the run torch
    has the settings of a new process; the previous settings are restored afterwards.

    Args:
        config: Path of an experiment file, its content as a nested dictionary, or a
            Config.
        out: Results folder; default ``runs/NAME``.
        fresh: Whether to move an old results folder aside and start over.
        on_round: Function that rank 0 calls after each round as
            ``on_round(name, round, values)``. ``name`` is the name of the run, which
            identifies the run of a sweep; ``values`` are the recorded numbers by their
            names in the results, such as ``values["pre/weighted"]``. The scoring after
            the last round is round R + 1.
        progress: Whether to print progress, notes and results.

    Returns:
        Run; for a sweep the runs by name.

    Raises:
        UserError: If the input is invalid.
        RunFailure: If the run had to end.
        Interrupted: If a stop signal, such as a notebook's interrupt, arrived; raised
            at the end of the round, after the state is saved.
        KeyboardInterrupt: If a second signal arrived; raised at once.
    """
    if on_round is not None and not callable(on_round):
        raise UserError(
            f"on_round = {on_round!r} is not callable; pass a function (name, round, values)"
        )
    atomic.check_working_folder()
    folder = None if out is None else parse_path("out", out)
    if not _one_run.acquire(blocking=False):
        raise UserError(
            "hpcfl.run was called while another run is active in this process; "
            "wait for that run, or use another process"
        )
    patience = _read_hang_after(config)
    try:
        communicator = _get_communicator(patience)
        with (
            _note_errors(communicator),
            nullcontext() if progress else output.suppress_lines(),
        ):
            plan = agree_on_plan(
                lambda: _plan_runs(config, folder), fresh, communicator
            )
            run_plan(plan, fresh, communicator, on_round)
            communicator.bcast(None)  # rank 0 has written all results
            own = set[str]()
            for cell in plan.cells.values():
                own |= plugins.find_own_names(cell.resolved())
            return load(plan.folder, own)
    finally:
        _one_run.release()


@contextmanager
def _note_errors(communicator: Communicator) -> Iterator[None]:
    """Record that all ranks raise an error of the block, for the end of the script."""
    try:
        yield
    except EXPECTED as error:
        error.on_all_ranks = communicator.size > 1
        raise


def _plan_runs(
    config: Config | dict[str, Any] | str | Path, folder: Path | None
) -> RunPlan:
    """Return the plan of the argument ``config`` of ``run``. Raises UserError."""
    if isinstance(config, Config):
        folder = folder or Path("runs") / config.name
        return RunPlan(folder, {config.name: config}, is_sweep=False)
    if isinstance(config, dict):
        _refuse_other_keys(config, "")
        return make_plan(config, "configuration", folder)
    file = parse_path("config", config)
    return make_plan(read(file), str(file), folder)


def _refuse_other_keys(table: dict[Any, Any], section: str) -> None:
    """Raise UserError for a key in a nested table that is not a string."""
    for key, value in table.items():
        if not isinstance(key, str):
            where = f" in [{section}]" if section else ""
            raise UserError(
                f"configuration: the key {key!r}{where} is not a string; write it in quotes"
            )
        if isinstance(value, dict):
            _refuse_other_keys(value, f"{section}.{key}" if section else key)


def _read_hang_after(config: Config | dict[str, Any] | str | Path) -> float:
    """Return the seconds for which ranks wait for each other while they connect.

    It is ``runtime.hang_after``, if that can be read already, and at least PREPARING.
    """
    seconds = Runtime().hang_after
    with suppress(UserError, TypeError, ValueError, KeyError):
        if isinstance(config, Config):
            table = config.resolved()
        elif isinstance(config, dict):
            table = config
        else:
            table = read(Path(config))
        seconds = float(table["runtime"]["hang_after"])
    return max(PREPARING, seconds)


def _get_communicator(patience: float) -> Communicator:
    """Return the communicator of this process, which all calls share.

    Args:
        patience: Seconds to wait for the other ranks.
    """
    if not _connected:
        _connected.append(_connect(patience))
    return _connected[0]


def _connect(patience: float) -> Communicator:
    """Connect this process to the other ranks of its job."""
    communicator = connect(patience)
    if communicator.size == 1:
        return Guest()
    atexit.register(_finalize, communicator)
    sys.excepthook = partial(_end_job, communicator)
    return communicator


def _end_job(
    communicator: Communicator,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """End the job after the user's script has failed on this rank.

    If all ranks raise the error of ``run``, they exit together, and rank 0 prints it.
    Otherwise this rank aborts the job.
    """
    if isinstance(error, EXPECTED) and error.on_all_ranks:
        if communicator.is_server:
            output.complain(str(error))
        codes = [code for of_code, code in CODES if isinstance(error, of_code)]
        communicator.end(codes[0])
    sys.__excepthook__(kind, error, trace)
    communicator.abort(1)


def _finalize(communicator: Communicator) -> None:
    """Wait for the other ranks at the end of the user's script.

    mpiexec kills ranks that are slower than a rank that has exited. After a failure
    there is no wait, because the other ranks may be waiting elsewhere.
    """
    if getattr(sys, "last_value", None) is None:
        communicator.finalize()
