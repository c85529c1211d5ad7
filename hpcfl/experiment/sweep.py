"""Sweeps: a grid of experiments in one file, expanded to one named cell per run.

``[sweep]`` has lists for any keys of the file (``seed = [0, 1]``, ``method.name =
["fedavg", "fedala"]``), and their product is the grid. A list of tables with any name,
such as ``[[sweep.cases]]``, is one axis whose tables each set several keys.
"""

import copy
import hashlib
import itertools
import math
import shlex
from collections.abc import Iterator
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment.config import (
    NAME_BYTES,
    SECTIONS,
    Config,
    choose,
    parse,
    try_parse,
)
from hpcfl.experiment.experiment_file import (
    Setting,
    check_plain,
    flatten,
    write_label,
)
from hpcfl.experiment.plugins import is_selector
from hpcfl.files.file_names import make_file_name

MOST_CELLS = 10_000


def expand(table: dict[str, Any], source: str) -> dict[str, Config]:
    """Return the configurations of an experiment file's cells, by the names of their
    folders in the sweep's folder.

    The name in a configuration is the experiment's name followed by the cell's. Without
    ``[sweep]`` there is one cell, with the experiment's name.

    Args:
        table: The content of the experiment file.
        source: The table's origin, for error messages.

    Raises:
        UserError: The sweep or a cell has mistakes.
    """
    check_plain(table, source)
    _refuse_tuning(table, source)
    base = {key: value for key, value in table.items() if key != "sweep"}
    sweep = table.get("sweep")
    if sweep is None:
        config = parse(base, source)
        return {config.name: config}
    axes = list(_list_axes(sweep, source))
    _refuse_repeated(axes, source)
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
                f"{source}: sweep.name: cells get names from the swept keys; remove it"
            )
        name = _make_name(setting)
        if name in cells:
            raise UserError(f"{source}: sweep: two cells are '{name}'")
        cell, mistakes = parse_changed(base, setting)
        for mistake in mistakes:
            wrong.setdefault(mistake, name)
        if cell is not None:
            cells[name] = cell.model_copy(update={"name": f"{cell.name}-{name}"})
    if wrong:
        raise UserError(
            *(f"{source} [sweep] {name}: {mistake}" for mistake, name in wrong.items())
        )
    _refuse_equal(cells, source)
    return cells


def _refuse_equal(cells: dict[str, Config], source: str) -> None:
    """Raise UserError for two cells with the same configuration, such as 1 and 1.0."""
    names: dict[str, str] = {}
    for name, cell in cells.items():
        other = names.setdefault(cell.model_dump_json(exclude={"name"}), name)
        if other != name:
            raise UserError(
                f"{source}: sweep: '{other}' and '{name}' are the same experiment; "
                "leave one out"
            )


def _refuse_tuning(table: dict[str, Any], source: str) -> None:
    """Raise UserError for a file with a section [tune], which is for ``hpcfl tune``."""
    if "tune" in table:
        raise UserError(
            f"{source}: has a section [tune]; hpcfl tune {shlex.quote(source)}, with the "
            "same --set, checks and runs it"
        )


def parse_changed(
    base: dict[str, Any], setting: Setting
) -> tuple[Config | None, list[str]]:
    """Return the configuration of ``base`` changed by ``setting``, or None and the
    mistakes.

    Args:
        base: A nested table.
        setting: Values by dotted keys.
    """
    table = copy.deepcopy(base)
    # Selecting a plugin removes keys of the old one, so it comes before other keys.
    for key in sorted(setting, key=lambda key: not is_selector(key)):
        try:
            choose(table, key, setting[key])
        except UserError as error:
            return None, list(error.args)
    return try_parse(table)


def _make_name(setting: Setting) -> str:
    """Return the name of a cell's folder."""
    labels = []
    for key, value in setting.items():
        labels.append(make_file_name(write_label(key, value, setting)))
    return _shorten(",".join(labels))


def _list_axes(sweep: Any, source: str) -> Iterator[list[Setting]]:
    """Yield the settings along each axis of the grid. Raises UserError."""
    if not isinstance(sweep, dict) or not sweep:
        raise UserError(f"{source}: sweep = {sweep!r}: must be a table of lists")
    for key, value in sweep.items():
        if isinstance(value, list) and any(isinstance(case, dict) for case in value):
            if not all(isinstance(case, dict) and case for case in value):
                raise UserError(
                    f"{source}: sweep.{key}: must be tables, [[sweep.{key}]], none empty"
                )
            _refuse_ambiguous(key, value, source)
            yield [flatten(case) for case in value]
        else:
            for path, values in flatten({key: value}).items():
                if not isinstance(values, list) or not values:
                    raise UserError(
                        f"{source}: sweep.{path} = {values!r}: must be a list of values"
                    )
                yield [{path: choice} for choice in values]


def _refuse_ambiguous(name: str, cases: list[dict[str, Any]], source: str) -> None:
    """Raise UserError for a list of tables with the name of a section and a key such as
    ``seed``, which that section and the whole file have.
    """
    section = SECTIONS.get(name)
    for key in set[str]().union(*cases):
        if section and key in section.model_fields and key in Config.model_fields:
            raise UserError(
                f"{source}: sweep.{name}: '{key}' is the key of the whole file here; write "
                f"{name}.{key}, or give the list another name, as in [[sweep.cases]]"
            )


def _shorten(name: str) -> str:
    """Return a name of at most NAME_BYTES bytes: longer names are cut and end with a
    checksum.
    """
    if len(name.encode()) <= NAME_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name.encode()[: NAME_BYTES - 17].decode(errors='ignore')}-{digest}"


def _refuse_repeated(axes: list[list[Setting]], source: str) -> None:
    """Raise UserError for a key that two axes set."""
    swept = set[str]()
    for axis in axes:
        keys = set[str]().union(*axis)
        if repeated := swept & keys:
            raise UserError(
                f"{source}: sweep: '{min(repeated)}' is swept twice; leave one list out"
            )
        swept |= keys
