"""What there is to choose from, read off the code: methods with their own keys, data sets."""

import importlib
import inspect
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hpcfl import plugins

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def methods() -> list[dict[str, Any]]:
    """Every built-in method: name, description, reference, family, primary column, and its own keys as JSON schemas."""
    return [_method(name) for name in plugins.names("hpcfl.methods")]


def datasets() -> list[dict[str, Any]]:
    """Every built-in data set: name, description, and whether it needs no files."""
    package = "hpcfl.data.sources"
    return [{"name": name, "description": _first_line(_module(package, name)), "built_in": _module(package, name).plugin.built_in}
            for name in plugins.names(package)]


def show_methods() -> None:
    """Print a table of the methods and their keys."""
    found = Table("method", "reference", "key", "values", "default", "meaning", box=box.SIMPLE_HEAD)
    for method in methods():
        rows = [(key, type_name(schema), str(schema.get("default", "–")), schema.get("description", ""))
                for key, schema in method["keys"].items()] or [("", "", "", "")]
        for position, row in enumerate(rows):
            first = (method["name"], method["reference"]) if position == 0 else ("", "")
            found.add_row(*first, *row, end_section=position == len(rows) - 1)
    Console(highlight=False).print(found)


def show_datasets() -> None:
    """Print a table of the data sets."""
    found = Table("data set", "files", "description", box=box.SIMPLE_HEAD)
    for dataset in datasets():
        files = "built in" if dataset["built_in"] else f"hpcfl data download {dataset['name']} --root DIR"
        found.add_row(dataset["name"], files, dataset["description"])
    Console(highlight=False).print(found)


def type_name(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words: ``all | output | integer > 0``."""
    if "anyOf" in schema:
        return " | ".join(type_name(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    bounds = [f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema]
    return " ".join([schema.get("type", "any"), *bounds])


def _method(name: str) -> dict[str, Any]:
    module = _module("hpcfl.methods", name)
    method = module.plugin
    keys = {key: {part: value for part, value in schema.items() if part != "title"}
            for key, schema in method.model_json_schema()["properties"].items() if key != "name"}
    return {"name": name, "description": _first_line(module), "reference": method.reference, "family": method.family,
            "primary": method.primary, "keys": keys}


def _module(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")


def _first_line(module: Any) -> str:
    return (inspect.getdoc(module) or "").partition("\n")[0]
