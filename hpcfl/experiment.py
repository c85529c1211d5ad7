"""An experiment file, run: one run, or the cells of its sweep one after the other with a table at the end."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcfl import config, sweep
from hpcfl.communicator import Communicator
from hpcfl.preparation import prepare
from hpcfl.running import check_world, finished, run
from hpcfl.storage.agreement import agreed


def run_file(file: Path, overrides: Iterable[str], out: Path | None, fresh: bool, communicator: Communicator) -> Path:
    """Run an experiment file; the folder of its results. Collective. Raises what ``run_table`` raises."""
    with agreed(communicator):
        table = config.read(file, overrides)
    return run_table(table, str(file), out, fresh, communicator)


def run_table(table: dict[str, Any], source: str, out: Path | None, fresh: bool, communicator: Communicator) -> Path:
    """Run what an experiment file's table says. Collective. Raises UserError, RunFailure or Interrupted, on all ranks."""
    with agreed(communicator):
        cells = sweep.expand(table, source)
        folder = out or Path("runs") / table.get("name", cells[0].config.name)
    if "sweep" not in table:
        run_one(cells[0].config, folder, fresh, communicator)
        return folder
    for cell in cells:
        run_one(cell.config, folder / cell.name, fresh, communicator)
    if communicator.is_server:
        _report(folder)
    return folder


def check_file(file: Path, overrides: Iterable[str], communicator: Communicator) -> None:
    """Prepare an experiment without running it, and print what it is and needs; of a sweep the first cell. Collective."""
    with agreed(communicator):
        check_world(communicator)
        cells = sweep.expand(config.read(file, overrides), str(file))
        prepared = prepare(cells[0].config, communicator)
    from hpcfl.report import configuration, needs

    ranks = communicator.collect(vars(needs.of_rank(prepared, communicator)))
    if ranks is not None:
        print(configuration.toml(cells[0].config))
        needs.show(prepared, ranks)
        for note in prepared.split.notes:
            print(f"note: {note}")
        if len(cells) > 1:
            print(f"sweep: {len(cells)} valid cells, this is the first: {', '.join(cell.name for cell in cells)}")


def _report(folder: Path) -> None:
    from hpcfl.report import figures, tables

    tables.show(folder)
    for path in figures.draw(folder):
        print(f"figure: {path}")


def run_one(experiment: config.Config, folder: Path, fresh: bool, communicator: Communicator) -> None:
    """Run one configuration in ``folder``, unless it is complete there."""
    with agreed(communicator):
        complete = not fresh and finished(experiment, folder)
    if communicator.share(complete):
        if communicator.is_server:
            print(f"{experiment.name}: complete in {folder}; --fresh starts over")
        return
    run(experiment, folder, communicator, fresh)
