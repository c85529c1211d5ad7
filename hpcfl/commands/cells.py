"""Check all cells of a sweep before any cell runs: their sections and their data."""

import json
from collections.abc import Mapping
from typing import cast

from hpcfl.data import datasets
from hpcfl.data.partitions.base import Scheme
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.config import Config
from hpcfl.files import heartbeat
from hpcfl.methods.base import Method
from hpcfl.simulation.prepared_data import prepare_data


def check_cell(config: Config) -> None:
    """Raise UserError if sections of a cell exclude each other.

    Modules are imported only if a section needs them.
    """
    if config.changes_updates:
        from hpcfl.updates.checks import check_experiment

        check_experiment(config)
    if config.hides_samples:
        from hpcfl.updates.sample_level import refuse_uncovered

        refuse_uncovered(config, cast(Method, config.method))


@user_code.locate_errors()
def refuse_conflicts(cells: Mapping[str, Config]) -> None:
    """Raise UserError if sections of cells exclude each other.

    The error has one line for each mistake, with the name of the first cell that makes
    it.

    Args:
        cells: Configurations of the sweep by the name of the cell.
    """
    wrong: dict[str, str] = {}
    for name, config in cells.items():
        try:
            check_cell(config)
        except UserError as error:
            for mistake in error.args:
                wrong.setdefault(mistake, name)
    if wrong:
        raise UserError(*(f"{name}: {mistake}" for mistake, name in wrong.items()))


@user_code.locate_errors()
def try_data(cells: Mapping[str, Config], prepared: Config) -> None:
    """Read the data of all cells and draw their partitions.

    Cells that differ only in their seeds are tried once.

    Args:
        cells: Configurations of the sweep by the name of the cell.
        prepared: Configuration whose data have been prepared successfully.

    Raises:
        UserError: If data are missing or cannot be split; the message names the cell.
    """
    untried = {_describe(config): name for name, config in reversed([*cells.items()])}
    untried.pop(_describe(prepared), None)
    dataset, read = None, None
    for section, other in sorted(untried):
        config = cells[name := untried[section, other]]
        heartbeat.beat()
        try:
            if section != read:
                seed = cast(Scheme, config.partition).seed
                dataset, read = datasets.load(config.data, seed), section
            prepare_data(config, cast(Method, config.method), dataset)
        except UserError as error:
            raise UserError(*(f"{name}: {line}" for line in error.args)) from error


def _describe(config: Config) -> tuple[str, str]:
    """Return the section [data] as text, and all other keys that determine the clients'
    samples, without the seed.
    """
    table = config.resolved()
    rest = {name: table[name] for name in ("partition", "shift", "newcomers")}
    rest["partition"] = {**table["partition"], "seed": None}
    rest["attack"] = table.get("attack")
    held_out = (
        config.training.validation,
        cast(Method, config.method).validation_share(),
    )
    return json.dumps(table["data"]), json.dumps([rest, held_out])
