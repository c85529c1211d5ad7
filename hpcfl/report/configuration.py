"""The resolved configuration as text that is itself an experiment file, with what each
key means.
"""

import json
import re
from typing import Any

from hpcfl.experiment.config import Config
from hpcfl.experiment.plugin_keys import SELECTORS, data_keys, model_keys
from hpcfl.experiment.sections import Data, MethodSection, Model, Partition, Shift
from hpcfl.report.catalogue import Keys
from hpcfl.report.listing import values

# by section that names a plugin what all its plugins share
PLUGINS = {
    "data": Data.model_json_schema(),
    "partition": Partition.model_json_schema(),
    "model": Model.model_json_schema(),
    "method": MethodSection.model_json_schema(),
}
BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key of TOML that needs no quotes
WIDEST = 100  # letters before comments, but in lines that are longer


def toml(config: Config) -> str:
    """The configuration as TOML, with every key of every section; keys without a value
    are comments.

    Beside each key stand its meaning and the values that it may have.
    """
    table = config.resolved()
    top = {key: value for key, value in table.items() if not isinstance(value, dict)}
    shifts = top.pop("shift") or []
    blocks = [_block(top, Config.model_json_schema()["properties"])]
    for shift, keys in zip(config.shift, shifts, strict=True):
        schemas = type(shift).model_json_schema()["properties"]
        schemas["kind"] = Shift.model_json_schema()["properties"]["kind"]
        blocks.append(f"[[shift]]\n{_block(keys, schemas)}")
    for section, keys in table.items():
        if isinstance(keys, dict):
            schemas = type(getattr(config, section)).model_json_schema()["properties"]
            if section == "data":
                own_keys = data_keys(keys["dataset"]).model_json_schema()
                schemas |= own_keys.get("properties", {})
            if section == "model":
                schemas |= model_keys(keys["name"]).model_json_schema()["properties"]
            if (
                section in PLUGINS
            ):  # a plugin's own class may repeat this key without saying what it means
                schemas[SELECTORS[section]] = PLUGINS[section]["properties"][
                    SELECTORS[section]
                ]
            blocks.append(f"[{section}]\n{_block(keys, schemas)}")
    return "\n\n".join(blocks)


def _block(table: dict[str, Any], schemas: Keys) -> str:
    """One line a key, with comments that stand in one column."""
    lines = {key: _line(key, value) for key, value in table.items()}
    width = min(WIDEST, max(map(len, lines.values())))
    return "\n".join(
        f"{line:{width}}  # {_meaning(schemas[key])}" for key, line in lines.items()
    )


def _line(key: str, value: Any) -> str:
    return f"# {key} is not set" if value is None else f"{key} = {_written(value)}"


def _written(value: Any) -> str:
    """A value of TOML, which writes all but tables as JSON does."""
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            known = key if BARE.fullmatch(key) else json.dumps(key)
            entries.append(f"{known} = {_written(entry)}")
        return f"{{ {', '.join(entries)} }}"
    return json.dumps(value)


def _meaning(schema: dict[str, Any]) -> str:
    """What a key means, and its allowed values in brackets."""
    return " ".join(
        part for part in (schema.get("description", ""), f"({values(schema)})") if part
    )
