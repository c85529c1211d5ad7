"""Sections on clients' updates of every cell of a sweep, checked before any cell runs."""

from collections.abc import Mapping

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.config import Config


@user_code.locate_errors()
def refuse_conflicts(cells: Mapping[str, Config]) -> None:
    """Raise UserError for cells whose sections exclude each other: a line for each
    mistake, with the name of the first cell that has it.

    cells: by name.
    """
    wrong: dict[str, str] = {}
    for name, config in cells.items():
        if not config.changes_updates:
            continue
        from hpcfl.updates.checks import check_experiment

        try:
            check_experiment(config)
        except UserError as error:
            for mistake in error.args:
                wrong.setdefault(mistake, name)
    if wrong:
        raise UserError(*(f"{name}: {mistake}" for mistake, name in wrong.items()))
