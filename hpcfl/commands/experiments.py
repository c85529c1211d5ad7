"""An experiment file, run: one run, or the cells of its sweep one after the other with a table at the end."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfl import trial
from hpcfl.commands.run import check_world, run, silence
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator
from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import config, sweep
from hpcfl.files import atomic
from hpcfl.preparation.prepare import prepare_together
from hpcfl.report.text import plain
from hpcfl.storage.run_folder import RUN

SWEEP = "sweep.json"  # in a sweep's folder: the names of its cells, those too that nobody has started


@dataclass(frozen=True)
class Planned:
    """A cell: its name, its folder below that of the experiment ("." for a single run), its configuration."""

    name: str
    folder: str
    config: config.Config


@dataclass(frozen=True)
class Plan:
    """What an experiment file asks for, and where its results go."""

    folder: Path
    cells: list[Planned]
    is_sweep: bool

    def record(self) -> None:
        """Write down a sweep's cells for those who look at the folder. Raises UserError, RunFailure."""
        if not self.is_sweep:
            return
        if (self.folder / RUN).exists():
            raise UserError(f"{self.folder}: holds a single run, not a sweep; choose another --out or name")
        with atomic.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        atomic.write(self.folder / SWEEP, json.dumps([cell.name for cell in self.cells], indent=1).encode())


def plan(table: dict[str, Any], source: str, out: Path | None) -> Plan:
    """What an experiment file's table asks for. Raises UserError."""
    cells = sweep.expand(table, source)
    is_sweep = "sweep" in table
    folder = out or Path("runs") / table.get("name", cells[0].config.name)
    return Plan(folder, [Planned(cell.name, cell.name if is_sweep else ".", cell.config) for cell in cells],
                is_sweep)


def run_file(file: Path, overrides: Iterable[str], out: Path | None, fresh: bool,
             communicator: Communicator) -> Path:
    """Run an experiment file; the folder of its results. Collective. Raises what ``run_table`` raises."""
    return _run(lambda: config.read(file, overrides), str(file), out, fresh, communicator)


def run_table(table: dict[str, Any], source: str, out: Path | None, fresh: bool,
              communicator: Communicator) -> Path:
    """Run what an experiment file's table says, and say what came out; the folder of its results. Collective.

    Raises UserError, RunFailure or Interrupted, on all ranks.
    """
    return _run(lambda: table, source, out, fresh, communicator)


def _run(read: Callable[[], dict[str, Any]], source: str, out: Path | None, fresh: bool,
         communicator: Communicator) -> Path:
    with agreed(communicator):
        check_world(communicator)
        planned = plan(read(), source, out)
        communicator.watch(silence(cell.config for cell in planned.cells))
        if communicator.is_server:
            planned.record()
    if planned.is_sweep:
        _run_cells(planned, fresh, communicator)
    else:
        played = run_one(planned.cells[0].config, planned.folder, fresh, communicator)
        _tell(planned, played, communicator)
    return planned.folder


def check_file(file: Path, overrides: Iterable[str], communicator: Communicator) -> None:
    """Prepare an experiment without running it, and print what it is and needs; of a sweep the first
    cell. Collective."""
    with agreed(communicator):
        check_world(communicator)
        cells = sweep.expand(config.read(file, overrides), str(file))
    communicator.watch(silence([cells[0].config]))
    prepared = prepare_together(cells[0].config, communicator)
    prepared = trial.run(prepared, communicator)
    from hpcfl.report import configuration, needs

    ranks = communicator.collect(vars(needs.of_rank(prepared, communicator)))
    if ranks is not None:
        print(configuration.toml(cells[0].config))
        needs.show(prepared, ranks)
        for note in prepared.notes:
            print(f"note: {plain(note)}")
        if len(cells) > 1:
            print(f"sweep: {len(cells)} valid cells, this is the first: "
                  f"{', '.join(cell.name for cell in cells)}")


def run_one(experiment: config.Config, folder: Path, fresh: bool, communicator: Communicator) -> bool:
    """Run one configuration in ``folder``; False where it is complete there already."""
    played = run(experiment, folder, communicator, fresh)
    if not played and communicator.is_server:
        print(f"{experiment.name}: complete in {folder}; --fresh starts over", flush=True)
    return played


def _run_cells(planned: Plan, fresh: bool, communicator: Communicator) -> None:
    """A cell that fails does not keep the others from running; the failures are told at the end."""
    failures: dict[str, Exception] = {}
    played = False
    for cell in planned.cells:
        try:
            played |= run_one(cell.config, planned.folder / cell.folder, fresh, communicator)
        except (RunFailure, UserError) as error:
            # which would keep all that the cell had in memory
            failures[cell.name] = error.with_traceback(None)
            if communicator.is_server:
                print(f"{cell.name}: failed: {plain(error)}", flush=True)
    if len(failures) < len(planned.cells):
        _tell(planned, played, communicator)
    if failures:
        name, first = next(iter(failures.items()))
        raise RunFailure(f"{len(failures)} of {len(planned.cells)} cells failed, first {name}: {first}")


def _tell(planned: Plan, played: bool, communicator: Communicator) -> None:
    if communicator.is_server:
        from hpcfl.report import closing

        closing.tell(planned.folder, played)
