"""The keys of sections that name a plugin, which determines the section's keys."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import pydantic
from pydantic import BaseModel

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.experiment.sections import (
    Data,
    MethodSection,
    Model,
    Participation,
    Partition,
    Section,
    Shift,
)

# The key that names the plugin, the package of the plugins and their common keys.
PLUGINS: dict[str, tuple[str, str, type[Section]]] = {
    "data": ("dataset", "hpcfl.data.sources", Data),
    "partition": ("scheme", "hpcfl.data.partitions", Partition),
    "shift": ("kind", "hpcfl.data.shifts", Shift),
    "model": ("name", "hpcfl.models", Model),
    "method": ("name", "hpcfl.methods", MethodSection),
    "participation": ("select", "hpcfl.selection", Participation),
}
SELECTORS = {
    section: key for section, (key, *_) in PLUGINS.items() if section != "shift"
}


def find(place: str, given: Mapping[str, Any]) -> Any:
    """Return the plugin that a section names.

    place: the section, or ``shift.0`` for a table of ``[[shift]]``. Raises UserError.
    """
    key, package, common = PLUGINS[place.partition(".")[0]]
    field = common.model_fields[key]
    if key not in given and field.is_required():
        allowed = ", ".join(plugins.names(package))
        raise UserError(f"'{place}.{key}' is missing; allowed: {allowed}")
    return plugins.find(package, f"{place}.{key}", given.get(key, field.default))


@cache
def _options(make: Callable[..., Any], *first: str) -> type[BaseModel]:
    """Return a section with a callable's parameters after the ``first`` ones as keys.

    The keys have the parameters' types, defaults and constraints. Each callable's
    section is made once, because making it takes longer than reading one. Raises
    TypeError for other first parameters, and the exceptions of inspect and pydantic for
    types that no file can hold.
    """
    signature = inspect.signature(make, eval_str=True)
    parameters = list(signature.parameters.values())
    if tuple(signature.parameters)[: len(first)] != first:
        raise TypeError(f"it is called as {signature}")
    fields: dict[str, Any] = {}
    for parameter in parameters[len(first) :]:
        by_name = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if parameter.kind not in by_name:
            continue
        annotation = parameter.annotation
        default = parameter.default
        fields[parameter.name] = (
            Any if annotation is parameter.empty else annotation,
            ... if default is parameter.empty else default,
        )
    return pydantic.create_model("Options", __base__=Section, **fields)


def _own_keys(make: Callable[..., Any], first: list[str], what: str) -> type[BaseModel]:
    """Return the section of the own keys of ``make``.

    Raises UserError with the required signature of ``what`` the user named.
    """
    try:
        return _options(make, *first)
    except (TypeError, ValueError, NameError, pydantic.PydanticUserError) as error:
        raise UserError(
            f"{what} must be called as ({', '.join(first)}, *, own keys) with types "
            f"that a file can hold: {' '.join(str(error).split())}"
        ) from None


def section(place: str, given: Mapping[str, Any]) -> Section:
    """Return a section that names a plugin, with the plugin's own keys.

    place: as of ``find``. Raises UserError, or pydantic's ValidationError for wrong
    values.
    """
    if place not in ("data", "model"):
        return cast(Section, find(place, given)(**given))
    *_, common = PLUGINS[place]
    shared = {key: value for key, value in given.items() if key in common.model_fields}
    own = {key: value for key, value in given.items() if key not in shared}
    options = fields_class(place, given)(**own).model_dump()
    return common(**{**shared, "options": options})


def fields_class(place: str, given: Mapping[str, Any]) -> type[BaseModel]:
    """Return the class whose fields are the own keys of a section's plugin.

    For a data set they are the parameters of its source's ``read``, for a model those
    of the callable that makes it. Raises UserError.
    """
    plugin = find(place, given)
    if place == "data":
        name = given.get("dataset", Data.model_fields["dataset"].default)
        called = f"data.dataset = '{name}': read"
        return _own_keys(plugin.read, ["name", "root"], called)
    if place == "model":
        name = given.get("name", Model.model_fields["name"].default)
        return _own_keys(plugin, ["shape", "classes"], f"model.name = '{name}'")
    return cast(type[BaseModel], plugin)


def fields(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid keys of a section that names a plugin, with pydantic's fields.

    Raises UserError.
    """
    own = fields_class(place, given).model_fields
    if place not in ("data", "model"):
        return dict(own)
    *_, common = PLUGINS[place]
    shared = {**common.model_fields, **own}
    del shared["options"]
    return shared


def is_selector(key: str) -> bool:
    """Return whether a dotted key names a section's plugin, as ``model.name`` does."""
    section, _, selector = key.partition(".")
    return SELECTORS.get(section) == selector


def of_another(section: str, given: dict[str, Any], name: Any) -> set[str]:
    """Return the keys that a section has with the plugin of ``given`` but not with
    ``name``.

    The result is empty if either plugin is unknown.
    """
    try:
        keys = set(fields(section, given))
        keys_of_other = set(fields(section, {SELECTORS[section]: name}))
    except UserError:
        return set()
    return keys - keys_of_other
