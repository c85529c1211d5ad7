"""An experiment file, run: one run, or the cells of its sweep one after the other with a table at the end."""

from collections.abc import Iterable
from pathlib import Path

from hpcfl import config, sweep
from hpcfl.communicator import Communicator
from hpcfl.running import finished, run
from hpcfl.storage.agreement import agreed


def run_file(file: Path, overrides: Iterable[str], out: Path | None, fresh: bool, communicator: Communicator) -> None:
    """Collective. Raises UserError, RunFailure or Interrupted, on all ranks."""
    with agreed(communicator):
        table = config.read(file, overrides)
        cells = sweep.expand(table, str(file))
        folder = out or Path("runs") / table.get("name", cells[0].config.name)
    if "sweep" not in table:
        run_one(cells[0].config, folder, fresh, communicator)
        return
    for cell in cells:
        run_one(cell.config, folder / cell.name, fresh, communicator)
    if communicator.is_server:
        from hpcfl.report import figures, tables

        tables.show(folder)
        figures.draw(folder)


def run_one(experiment: config.Config, folder: Path, fresh: bool, communicator: Communicator) -> None:
    """Run one configuration in ``folder``, unless it is complete there."""
    with agreed(communicator):
        complete = not fresh and finished(experiment, folder)
    if communicator.share(complete):
        if communicator.is_server:
            print(f"{experiment.name}: complete in {folder}; --fresh starts over")
        return
    run(experiment, folder, communicator, fresh)
