"""Sweeps: a grid of experiments in one file, whose ``[sweep]`` becomes named cells.

``[sweep]`` has lists under any key of the file (``seed = [0, 1]``, ``method.name =
["fedavg", "fedala"]``); their product is the grid. Tables such as ``[[sweep.cases]]``
(any name) are linked columns: each sets several keys at once, and together they are one
axis.
"""

import copy
import hashlib
import itertools
import math
import shlex
from collections.abc import Iterator
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment.config import LONGEST, Config, checked, choose, parse
from hpcfl.experiment.experiment_file import Setting, check_plain, flat
from hpcfl.experiment.plugins import is_selector
from hpcfl.files.file_names import make_file_name

MOST_CELLS = 10_000


def expand(table: dict[str, Any], source: str) -> dict[str, Config]:
    """Return the cells of an experiment file's table: configurations by the names of
    their folders in the sweep's folder.

    A configuration is named after the file's experiment and the cell; without
    ``[sweep]`` there is one, with the experiment's name. source: the origin of the
    table, for errors. Raises UserError.
    """
    check_plain(table, source)
    _refuse_tuning(table, source)
    base = {key: value for key, value in table.items() if key != "sweep"}
    sweep = table.get("sweep")
    if sweep is None:
        config = parse(base, source)
        return {config.name: config}
    axes = list(_axes(sweep, source))
    size = math.prod(map(len, axes))
    if size > MOST_CELLS:
        raise UserError(
            f"{source}: sweep: {size:,} cells, at most {MOST_CELLS:,} are allowed"
        )
    cells: dict[str, Config] = {}
    wrong: dict[str, str] = {}  # the first cell that has a mistake, by the mistake
    for choice in itertools.product(*axes):
        setting: Setting = {}
        for part in choice:
            setting |= part
        if "name" in setting:
            raise UserError(
                f"{source}: sweep.name: cells are named by what sets them apart"
            )
        name = _name(setting)
        if name in cells:
            raise UserError(f"{source}: sweep: two cells are '{name}'")
        cell, mistakes = configured(base, setting)
        for mistake in mistakes:
            wrong.setdefault(mistake, name)
        if cell is not None:
            cells[name] = cell.model_copy(update={"name": f"{cell.name}-{name}"})
    if wrong:
        raise UserError(
            *(f"{source} [sweep] {name}: {mistake}" for mistake, name in wrong.items())
        )
    return cells


def _refuse_tuning(table: dict[str, Any], source: str) -> None:
    """Raise UserError for a file with a section [tune], which another command plays."""
    if "tune" in table:
        raise UserError(
            f"{source}: has a section [tune]; hpcfl tune {shlex.quote(source)} checks "
            "and plays it"
        )


def configured(
    base: dict[str, Any], setting: Setting
) -> tuple[Config | None, list[str]]:
    """Return the configuration of the ``base`` table with ``setting``, or None and the
    mistakes.
    """
    table = copy.deepcopy(base)
    # A plugin is chosen before its keys are set.
    for key in sorted(setting, key=lambda key: not is_selector(key)):
        try:
            choose(table, key, setting[key])
        except UserError as error:
            return None, list(error.args)
    return checked(table)


def _name(setting: Setting) -> str:
    """Return the name of a cell's folder."""
    labels = [_label(key, value, setting) for key, value in setting.items()]
    return _shortened(",".join(labels))


def _axes(sweep: Any, source: str) -> Iterator[list[Setting]]:
    """Yield the settings along each axis of the grid. Raises UserError."""
    if not isinstance(sweep, dict) or not sweep:
        raise UserError(f"{source}: sweep = {sweep!r}: must be a table of lists")
    for key, value in sweep.items():
        if isinstance(value, list) and any(isinstance(case, dict) for case in value):
            if not all(isinstance(case, dict) and case for case in value):
                raise UserError(
                    f"{source}: sweep.{key}: must be tables, [[sweep.{key}]], none empty"
                )
            yield [flat(case) for case in value]
        else:
            for path, values in flat({key: value}).items():
                if not isinstance(values, list) or not values:
                    raise UserError(
                        f"{source}: sweep.{path} = {values!r}: must be a list of values"
                    )
                yield [{path: choice} for choice in values]


def _label(key: str, value: Any, setting: Setting) -> str:
    """Return a key's part of a cell's name: ``fedavg`` for method.name, else
    ``beta=0.1``.

    If two keys end alike, it has the whole key. The text is valid in a folder's name.
    """
    last = key.rpartition(".")[2]
    alike = sum(other.rpartition(".")[2] == last for other in setting) > 1
    if last in ("name", "dataset", "scheme"):
        text = str(value)
    elif alike:
        text = f"{key}={value}"
    else:
        text = f"{last}={value}"
    return make_file_name(text)


def _shortened(name: str) -> str:
    """Return a name of at most LONGEST bytes; a longer one is cut and gets a checksum."""
    if len(name.encode()) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name.encode()[: LONGEST - 17].decode(errors='ignore')}-{digest}"
