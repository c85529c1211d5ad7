"""Check sections on clients' updates in all cells of a sweep before any cell runs."""

from collections.abc import Mapping
from typing import cast

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.config import Config
from hpcfl.methods.base import Method


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
