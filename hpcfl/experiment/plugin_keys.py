"""Which keys a section has depends on the plugin that it names: checked to be one, and asked for its keys."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic
from pydantic import BaseModel

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.experiment.sections import MethodSection, Model, Partition, Section

SELECTORS = {"partition": "scheme", "model": "name", "method": "name"}  # the key that names the plugin


def _options(parameters: Iterable[inspect.Parameter]) -> type[BaseModel]:
    """A section whose keys are a callable's parameters: types, defaults and constraints."""
    fields: dict[str, Any] = {
        p.name: (Any if p.annotation is p.empty else p.annotation, ... if p.default is p.empty else p.default)
        for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return pydantic.create_model("Options", __base__=Section, **fields)


_COMMON_MODEL_KEYS = [key for key in Model.model_fields if key != "options"]


def model(**table: Any) -> Model:
    """``name`` picks the callable; keys that not all models have must be parameters of it."""
    common = {key: table.pop(key) for key in _COMMON_MODEL_KEYS if key in table}
    name = common.get("name", Model.model_fields["name"].default)
    return Model(**common, options=model_keys(name)(**table).model_dump())


def model_keys(name: str) -> type[BaseModel]:
    """A model's own keys: the parameters after (shape, classes) of what makes it. Raises UserError."""
    found = plugins.find("hpcfl.models", "model.name", name)
    try:
        signature = inspect.signature(found, eval_str=True)
        if list(signature.parameters)[:2] != ["shape", "classes"]:
            raise TypeError(f"it is called as {signature}")
        return _options(list(signature.parameters.values())[2:])
    except (TypeError, ValueError, NameError, pydantic.PydanticUserError) as error:
        raise UserError(f"model.name = '{name}' must be called as (shape, classes, *, own keys) with types "
                        f"that a file can hold: {' '.join(str(error).split())}") from None


def partition_class(table: dict[str, Any]) -> type[Partition]:
    """The class of the scheme that the section ``[partition]`` names. Raises UserError."""
    name = table.get("scheme", Partition.model_fields["scheme"].default)
    found: type[Partition] = plugins.find("hpcfl.data.partitions", "partition.scheme", name)
    return found


def method_class(table: dict[str, Any]) -> type[MethodSection]:
    """The class of the method that the section ``[method]`` names. Raises UserError."""
    if "name" not in table:
        raise UserError(f"'method.name' is missing; allowed: {', '.join(plugins.names('hpcfl.methods'))}")
    found: type[MethodSection] = plugins.find("hpcfl.methods", "method.name", table["name"])
    return found


def fields(section: str, given: dict[str, Any]) -> Mapping[str, Any]:
    """The valid keys of a section of SELECTORS, with their pydantic fields if they have. Raises UserError."""
    if section == "model":
        own = model_keys(given.get("name", Model.model_fields["name"].default)).model_fields
        return {**dict.fromkeys(_COMMON_MODEL_KEYS), **own}
    return (method_class if section == "method" else partition_class)(given).model_fields


def is_selector(key: str) -> bool:
    """Whether a dotted key names a section's plugin, as ``model.name`` does."""
    section, _, selector = key.partition(".")
    return SELECTORS.get(section) == selector


def of_another(section: str, given: dict[str, Any], name: Any) -> set[str]:
    """The keys that a section can have with the plugin it names now, and not with the one called ``name``.

    None where either is unknown.
    """
    try:
        return set(fields(section, given)) - set(fields(section, {SELECTORS[section]: name}))
    except UserError:
        return set()
