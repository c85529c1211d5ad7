"""The built-in methods with their own keys, and the built-in data sets, read off the code."""

import importlib
import inspect
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from hpcfl.experiment import plugins
from hpcfl.report import traffic

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def methods() -> list[dict[str, Any]]:
    """Describe every built-in method, JSON-able.

    Each has a name, description, reference, family and primary column, what travels in a round (as
    ``traffic.Traffic``), and its own keys as JSON schemas.
    """
    return [_method(name) for name in plugins.names("hpcfl.methods")]


def datasets() -> list[dict[str, Any]]:
    """Describe every built-in data set, JSON-able: name, description, whether it needs files, and which."""
    return [_dataset(name) for name in plugins.names("hpcfl.data.sources")]


def show_methods() -> None:
    """Print a table of the methods and what travels, and one of their keys."""
    overview = Table("method", "reference", "family", Column("down", justify="right"),
                     Column("up", justify="right"), "FedALA, Table 3", box=box.SIMPLE_HEAD,
                     caption=traffic.EXPLAINED, caption_justify="left")
    keys = Table("method", "key", "values", "default", "meaning", box=box.SIMPLE_HEAD)
    for method in methods():
        floats = method["traffic"]
        paper = f"{floats['paper'][0]} = {floats['paper'][1]:.2f}" if floats["paper"] else ""
        overview.add_row(method["name"], method["reference"], method["family"], f"{floats['down']:.2f}",
                         f"{floats['up']:.2f}", paper)
        for key, schema in method["keys"].items():
            keys.add_row(method["name"], key, type_name(schema), str(schema.get("default", "–")),
                         schema.get("description", ""), end_section=key == list(method["keys"])[-1])
    console = Console(highlight=False)
    console.print(overview)
    console.print(keys)


def show_datasets() -> None:
    """Print a table of the data sets."""
    overview = Table("data set", "files", "description", box=box.SIMPLE_HEAD)
    for dataset in datasets():
        overview.add_row(dataset["name"], dataset["files"], dataset["description"])
    Console(highlight=False).print(overview)


def type_name(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words, such as ``all | output | integer > 0``."""
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
    return {"name": name, "description": _summary(module),
            "reference": method.reference, "family": method.family,
            "primary": method.primary, "traffic": asdict(traffic.of(name)), "keys": keys}


def _dataset(name: str) -> dict[str, Any]:
    module = _module("hpcfl.data.sources", name)
    files = ("built in" if module.plugin.built_in else "your own: data.file" if module.plugin.own_file
             else f"hpcfl data download {name} --root DIR")
    return {"name": name, "description": _summary(module), "built_in": module.plugin.built_in,
            "files": files}


def _module(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")


def _summary(module: Any) -> str:
    """The first paragraph of a module's docstring, on one line."""
    return " ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split())
