"""The resolved configuration as text that is itself an experiment file."""

import json
from typing import Any

from hpcfl.experiment.config import Config


def toml(config: Config) -> str:
    """The configuration as TOML, with every key of every section; keys without a value are comments."""
    table = config.resolved()
    lines = [_line(key, value) for key, value in table.items() if not isinstance(value, dict)]
    for section, keys in table.items():
        if isinstance(keys, dict):
            lines += ["", f"[{section}]", *(_line(key, value) for key, value in keys.items())]
    return "\n".join(lines)


def _line(key: str, value: Any) -> str:
    # Strings, numbers, booleans and lists of them are written alike in JSON and in TOML.
    return f"# {key} is not set" if value is None else f"{key} = {json.dumps(value)}"
