"""The keys of sections that name a plugin, which determines the section's keys."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

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

SELECTORS = {
    "data": "dataset",
    "partition": "scheme",
    "model": "name",
    "method": "name",
    "participation": "select",
}  # the key that names the plugin


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


_COMMON_MODEL_KEYS = [key for key in Model.model_fields if key != "options"]


def model(**table: Any) -> Model:
    """Return the section ``[model]``.

    Its own keys must be parameters of the model called ``name``. Raises UserError, or
    pydantic's ValidationError for wrong values.
    """
    common = {key: table.pop(key) for key in _COMMON_MODEL_KEYS if key in table}
    name = common.get("name", Model.model_fields["name"].default)
    own_keys = model_keys(name)
    options = own_keys(**table)
    return Model(**common, options=options.model_dump())


def model_keys(name: str) -> type[BaseModel]:
    """Return a section of a model's own keys.

    They are the parameters after (shape, classes) of the callable that makes it. Raises
    UserError.
    """
    make = plugins.find("hpcfl.models", "model.name", name)
    return _own_keys(make, ["shape", "classes"], f"model.name = '{name}'")


_COMMON_DATA_KEYS = [key for key in Data.model_fields if key != "options"]


def data(**table: Any) -> Data:
    """Return the section ``[data]``.

    Its own keys must be parameters of the reader of the data set called ``dataset``.
    Raises UserError, or pydantic's ValidationError for wrong values.
    """
    common = {key: table.pop(key) for key in _COMMON_DATA_KEYS if key in table}
    name = common.get("dataset", Data.model_fields["dataset"].default)
    options = data_keys(name)(**table)
    return Data(**common, options=options.model_dump())


def data_keys(name: str) -> type[BaseModel]:
    """Return a section of a data set's own keys.

    They are the parameters after (name, root) of its source's ``read``. Raises
    UserError.
    """
    source = plugins.find("hpcfl.data.sources", "data.dataset", name)
    return _own_keys(source.read, ["name", "root"], f"data.dataset = '{name}': read")


def partition_class(table: dict[str, Any]) -> type[Partition]:
    """Return the class of the scheme in the section ``[partition]``. Raises UserError."""
    name = table.get("scheme", Partition.model_fields["scheme"].default)
    scheme: type[Partition] = plugins.find(
        "hpcfl.data.partitions", "partition.scheme", name
    )
    return scheme


def selection_class(table: dict[str, Any]) -> type[Participation]:
    """Return the class of the selection in ``[participation]``. Raises UserError."""
    name = table.get("select", Participation.model_fields["select"].default)
    selection: type[Participation] = plugins.find(
        "hpcfl.clock.selection", "participation.select", name
    )
    return selection


def shift_class(table: dict[str, Any], place: str) -> type[Shift]:
    """Return the class of the shift in a table of ``[[shift]]``.

    place: the table's own, such as ``shift.0``. Raises UserError.
    """
    package = "hpcfl.data.shifts"
    if "kind" not in table:
        allowed = ", ".join(plugins.names(package))
        raise UserError(f"'{place}.kind' is missing; allowed: {allowed}")
    shift: type[Shift] = plugins.find(package, f"{place}.kind", table["kind"])
    return shift


def method_class(table: dict[str, Any]) -> type[MethodSection]:
    """Return the class of the method that the section ``[method]`` names.

    Raises UserError.
    """
    if "name" not in table:
        raise UserError(
            f"'method.name' is missing; allowed: {', '.join(plugins.names('hpcfl.methods'))}"
        )
    method: type[MethodSection] = plugins.find(
        "hpcfl.methods", "method.name", table["name"]
    )
    return method


def fields(section: str, given: dict[str, Any]) -> Mapping[str, Any]:
    """Return the valid keys of a section in SELECTORS with their pydantic fields or
    None.

    given: the section's table, which names the plugin. Raises UserError.
    """
    if section == "model":
        name = given.get("name", Model.model_fields["name"].default)
        own_fields = model_keys(name).model_fields
        return {**dict.fromkeys(_COMMON_MODEL_KEYS), **own_fields}
    if section == "data":
        name = given.get("dataset", Data.model_fields["dataset"].default)
        common = {key: Data.model_fields[key] for key in _COMMON_DATA_KEYS}
        return {**common, **data_keys(name).model_fields}
    if section == "method":
        return method_class(given).model_fields
    if section == "participation":
        return selection_class(given).model_fields
    return partition_class(given).model_fields


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
