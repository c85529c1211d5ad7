"""Print the resolved configuration as an experiment file."""

from collections.abc import Iterator
from typing import Any

import tomli_w

from hpcfl.experiment.config import OPTIONAL, SECTIONS, Config
from hpcfl.experiment.plugins import (
    LISTS,
    PLUGINS,
    find_common_keys,
    find_plugin_class,
)
from hpcfl.report.catalogue import Keys
from hpcfl.report.listing import describe_values

REQUIRED = object()  # the default of a key that must be given


def write_toml(config: Config) -> str:
    """Return the configuration as TOML with every key of every section.

    A comment above each key gives its meaning and allowed values. Keys without a value
    are comments.
    """
    blocks = []
    for section, table, schemas in _list_sections(config):
        lines = [f"[{section}]"] if section else []
        # In TOML a table within the section ends the section's own keys.
        for key in sorted(table, key=lambda key: _holds_tables(table[key])):
            lines.append(f"# {_describe_key(schemas[key])}")
            if table[key] is None:
                lines.append(f"# {key} is not set")
                continue
            entry = {key: table[key]}
            if section:
                entry = {section: entry}
            text = tomli_w.dumps(entry)
            lines.append(text.removeprefix(f"[{section}]\n").rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _holds_tables(value: Any) -> bool:
    """Return whether TOML writes a value as a table or as tables."""
    if isinstance(value, list) and value:
        return isinstance(value[0], dict)
    return isinstance(value, dict)


def write_changed_keys(config: Config) -> str:
    """Return as TOML the keys with values other than their defaults, without keys that
    are derived from others.
    """
    partition_seed = (config.seed + 1) % 2**63
    derived = {("partition", "seed"): partition_seed}
    changed: dict[str, Any] = {}
    for section, table, schemas in _list_sections(config):
        for key, value in table.items():
            default = _find_default(value, schemas[key])
            derived_value = derived.get((section, key), default)
            if value in (default, derived_value):
                continue
            keys = changed
            if section:
                keys = changed.setdefault(section, {})
            keys[key] = value
    return tomli_w.dumps(changed).rstrip()


def _find_default(value: Any, schema: dict[str, Any]) -> Any:
    """Return the default of a key with this value; REQUIRED if it must be given."""
    if "default" not in schema and isinstance(value, list | dict):
        return type(value)()  # pydantic's schema omits defaults from a factory
    return schema.get("default", REQUIRED)


def _list_sections(config: Config) -> Iterator[tuple[str, dict[str, Any], Keys]]:
    """Yield each section as its name, its keys with their values, and the schemas by key.

    The name is "" for keys outside of any section.
    """
    table = config.resolved()
    sections = [*SECTIONS, *(name for name in OPTIONAL if name in table)]
    top = {key: value for key, value in table.items() if key not in sections}
    for name in LISTS:
        tables = []
        for given in top.get(name, []):
            kept = {key: value for key, value in given.items() if value is not None}
            tables.append(kept)
        top[name] = tables
    yield "", top, Config.model_json_schema()["properties"]
    for section in sections:
        yield section, table[section], _find_schemas(config, section, table[section])


def _find_schemas(config: Config, section: str, table: dict[str, Any]) -> Keys:
    """Return the schemas of a section's keys, including the keys of its plugin."""
    schemas: Keys = type(getattr(config, section)).model_json_schema()["properties"]
    if section in PLUGINS:
        own = find_plugin_class(section, table).model_json_schema()
        schemas = schemas | own.get("properties", {})
        # A plugin's class may repeat this key without its description and default.
        selector, *_ = PLUGINS[section]
        common = find_common_keys(section)
        common_schemas = common.model_json_schema()["properties"]
        schemas[selector] = common_schemas[selector]
    return schemas


def _describe_key(schema: dict[str, Any]) -> str:
    """Return the meaning of a key, with its allowed values in brackets."""
    return f"{schema.get('description', '')} ({describe_values(schema)})".lstrip()
