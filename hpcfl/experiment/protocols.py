"""The experimental settings of papers as defaults, such as ``protocol = "fedala"``.

Each file in ``papers/`` is a list of rules: where the experiment has the values in
``when``, those in ``then`` are its defaults. Later rules win over earlier ones, and the
user's own keys win over all. The sources are protocols.md B, C, E1 and the
hyperparameters that the papers print for their baselines.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment.plugins import nearest

Setting = dict[str, Any]  # dotted key → value
FOLDER = Path(__file__).with_name("papers")


def _read(protocol: str) -> dict[str, Any]:
    """Read a paper's file. Raises UserError for an unknown protocol."""
    known = sorted(path.stem for path in FOLDER.glob("*.toml"))
    if protocol not in known:
        raise UserError(
            f"protocol = {protocol!r} is unknown{nearest(str(protocol), known)}"
        )
    return tomllib.loads((FOLDER / f"{protocol}.toml").read_text(encoding="utf-8"))


def complete(table: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment's nested table with its protocol's defaults.

    Raises UserError for an unknown protocol.
    """
    if table.get("protocol") is None:
        return table
    own, defaults = flat(table), Setting()
    for rule in _read(table["protocol"])["rule"]:
        if _holds(rule, defaults | own):
            defaults |= flat(rule["then"])
    return _with_defaults(table, defaults)


def unsourced(resolved: Mapping[str, Any]) -> list[str]:
    """Return a note for each value of a resolved configuration without a source.

    These are defaults of the protocol that neither the paper nor its code prints.
    """
    if resolved["protocol"] is None:
        return []
    notes = _read(resolved["protocol"]).get("unsourced", [])
    return [entry["note"] for entry in notes if _holds(entry, flat(resolved))]


def _holds(rule: Mapping[str, Any], setting: Setting) -> bool:
    """Return whether a setting has the values in ``when``; a list has alternatives."""
    for key, value in flat(rule.get("when", {})).items():
        if setting.get(key) not in (value if isinstance(value, list) else [value]):
            return False
    return True


def flat(
    table: Mapping[str, Any],
    prefix: str = "",
    is_value: Callable[[Mapping[str, Any]], bool] = lambda table: False,
) -> Setting:
    """Return a nested table by dotted keys.

    is_value: whether an inner table is a value and stays whole.
    """
    setting: Setting = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not is_value(value):
            setting |= flat(value, f"{prefix}{key}.", is_value)
        else:
            setting[prefix + key] = value
    return setting


def _with_defaults(table: dict[str, Any], defaults: Setting) -> dict[str, Any]:
    """Return a copy of a nested table with ``defaults`` for its missing keys.

    A section that is no table stays as it is; a later check refuses it.
    """
    result = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
    for dotted, value in defaults.items():
        section, _, key = dotted.partition(".")
        if not key:
            result.setdefault(section, value)
        elif isinstance(result.setdefault(section, {}), dict):
            result[section].setdefault(key, value)
    return result
