"""The resolved configuration as text that is itself an experiment file, with what each
key means.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from hpcfl.experiment.config import Config
from hpcfl.experiment.plugin_keys import SELECTORS, data_keys, model_keys
from hpcfl.experiment.sections import (
    Data,
    MethodSection,
    Model,
    Participation,
    Partition,
    Shift,
)
from hpcfl.report.catalogue import Keys
from hpcfl.report.listing import values

# by section that names a plugin what all its plugins share
PLUGINS = {
    "data": Data.model_json_schema(),
    "partition": Partition.model_json_schema(),
    "model": Model.model_json_schema(),
    "method": MethodSection.model_json_schema(),
    "participation": Participation.model_json_schema(),
}
REQUIRED = object()  # stands for the default of a key that has none
BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key of TOML that needs no quotes
WIDEST = 100  # letters before comments, but in lines that are longer


def toml(config: Config) -> str:
    """Return the configuration as TOML, with every key of every section; keys without a
    value are comments.

    Beside each key stand its meaning and the values that it may have.
    """
    blocks = [
        _block(heading, {key: (value, _meaning(schemas[key])) for key, value in keys})
        for heading, keys, schemas in _sections(config)
    ]
    return "\n\n".join(blocks)


def changed_keys(config: Config) -> str:
    """Return as TOML the keys whose values are not their defaults, each beside its
    default; without those that follow from another key.
    """
    derived = {
        ("[partition]", "seed"): (config.seed + 1) % 2**63,
        ("[[shift]]", "assign"): "random" if config.partition.by_number else "blocks",
    }
    blocks = []
    for heading, keys, schemas in _sections(config):
        kept = {}
        for key, value in keys:
            default = _find_default(value, schemas[key])
            if value not in (default, derived.get((heading, key), default)):
                kept[key] = value, _describe_default(default)
        if kept:
            blocks.append(_block(heading, kept))
    return "\n\n".join(blocks)


def _find_default(value: Any, schema: dict[str, Any]) -> Any:
    """Return the default of a key with this value, REQUIRED where it must be given."""
    if "default" not in schema and isinstance(value, list | dict):
        return type(value)()  # pydantic's schema has no default that a function makes
    return schema.get("default", REQUIRED)


def _describe_default(default: Any) -> str:
    """Return the comment on a key with another value than its default."""
    if default is REQUIRED:
        return ""
    return "default: not set" if default is None else f"default {_written(default)}"


def _sections(config: Config) -> Iterator[tuple[str, Iterable[tuple[str, Any]], Keys]]:
    """Yield the heading of each table of the configuration, its keys with their values,
    and their schemas by key.
    """
    table = config.resolved()
    top = {key: value for key, value in table.items() if not isinstance(value, dict)}
    shifts = top.pop("shift") or []
    yield "", top.items(), Config.model_json_schema()["properties"]
    for shift, keys in zip(config.shift, shifts, strict=True):
        schemas = type(shift).model_json_schema()["properties"]
        schemas["kind"] = Shift.model_json_schema()["properties"]["kind"]
        yield "[[shift]]", keys.items(), schemas
    for section, keys in table.items():
        if isinstance(keys, dict):
            yield f"[{section}]", keys.items(), _schemas(config, section, keys)


def _schemas(config: Config, section: str, keys: dict[str, Any]) -> Keys:
    """Return the schemas of a section's keys, with those of its plugin."""
    schemas: Keys = type(getattr(config, section)).model_json_schema()["properties"]
    if section == "data":
        own_keys = data_keys(keys["dataset"]).model_json_schema()
        schemas |= own_keys.get("properties", {})
    if section == "model":
        schemas |= model_keys(keys["name"]).model_json_schema()["properties"]
    if section in PLUGINS:
        # a plugin's own class may repeat this key without its description and default
        selector = SELECTORS[section]
        schemas[selector] = PLUGINS[section]["properties"][selector]
    return schemas


def _block(heading: str, entries: dict[str, tuple[Any, str]]) -> str:
    """Return a table of TOML, one line a key, with comments that stand in one column.

    entries: a value and a comment by key.
    """
    lines = {key: _line(key, value) for key, (value, _) in entries.items()}
    width = min(WIDEST, max(map(len, lines.values())))
    texts = [heading] if heading else []
    for key, (_, comment) in entries.items():
        line = f"{lines[key]:{width}}  # {comment}" if comment else lines[key]
        texts.append(line)
    return "\n".join(texts)


def _line(key: str, value: Any) -> str:
    return f"# {key} is not set" if value is None else f"{key} = {_written(value)}"


def _written(value: Any) -> str:
    """Return a value as TOML, which writes all but tables as JSON does."""
    if isinstance(value, dict):
        entries = []
        for key, entry in value.items():
            known = key if BARE.fullmatch(key) else json.dumps(key)
            entries.append(f"{known} = {_written(entry)}")
        return f"{{ {', '.join(entries)} }}"
    return json.dumps(value)


def _meaning(schema: dict[str, Any]) -> str:
    """Return the meaning of a key, with its allowed values in brackets."""
    return " ".join(
        part for part in (schema.get("description", ""), f"({values(schema)})") if part
    )
