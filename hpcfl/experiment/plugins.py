"""Methods, models, scores and other plugins by name: built-in files, or a user's
``module:object``; and the keys of sections that name a plugin, which has keys of its own.
"""

import importlib
import importlib.util
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import user_code
from hpcfl.files.untrusted_files import refuse_unreadable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hpcfl.experiment.sections import Section

# The base class of a user's own object, by package; a model is any callable.
CONTRACTS = {
    "hpcfl.selection": "hpcfl.selection.base.Selection",
    "hpcfl.methods": "hpcfl.methods.base.Method",
    "hpcfl.methods.overlays": "hpcfl.methods.overlays.base.OwnOverlay",
    "hpcfl.updates.transforms": "hpcfl.updates.base.Transform",
    "hpcfl.updates.rules": "hpcfl.updates.base.Rule",
    "hpcfl.updates.attacks": "hpcfl.updates.base.Attack",
    "hpcfl.data.partitions": "hpcfl.data.partitions.base.Scheme",
    "hpcfl.data.shifts": "hpcfl.data.shifts.base.Shift",
    "hpcfl.data.sources": "hpcfl.data.sources.base.Source",
    "hpcfl.scores": "hpcfl.scores.base.Score",
    "hpcfl.tracking": "hpcfl.tracking.base.Tracker",
}
# The line by which a module of a package declares itself one of its plugins.
PLUGIN_LINE = re.compile(r"^(plugin = |def plugin\()", re.MULTILINE)
FAMILIES = "families.toml"  # in a package, by file: the names of its several plugins
AS_FILES = (
    "hpcfl.scores",
)  # packages whose built-in names keep ``_``, like the metrics in the results
# The key that names the plugin, the package of the plugins and the class of their
# common keys in ``sections``, which readers of results do not need.
PLUGINS = {
    "data": ("dataset", "hpcfl.data.sources", "Data"),
    "partition": ("scheme", "hpcfl.data.partitions", "Partition"),
    "shift": ("kind", "hpcfl.data.shifts", "Shift"),
    "model": ("name", "hpcfl.models", "Model"),
    "method": ("name", "hpcfl.methods", "MethodSection"),
    "overlay": ("kind", "hpcfl.methods.overlays", "OverlaySection"),
    "transform": ("kind", "hpcfl.updates.transforms", "TransformSection"),
    "compression": ("kind", "hpcfl.updates.transforms", "TransformSection"),
    "aggregation": ("rule", "hpcfl.updates.rules", "AggregationSection"),
    "attack": ("kind", "hpcfl.updates.attacks", "AttackSection"),
    "participation": ("select", "hpcfl.selection", "Participation"),
}
# the lists of tables among them, such as ``[[shift]]``
LISTS = ("shift", "overlay", "transform")
SELECTORS = {
    section: key for section, (key, *_) in PLUGINS.items() if section not in LISTS
}


@cache
def names(package: str) -> tuple[str, ...]:
    """Return the built-in names of a package: those of its files with a ``plugin``.

    ``-`` replaces ``_`` except in AS_FILES. FAMILIES lists files with several names.
    """
    return tuple(_files(package))


@cache
def _files(package: str) -> dict[str, str]:
    """Return the file of each built-in name of a package, in the order of names."""
    found = importlib.util.find_spec(package)  # without importing it
    assert found is not None and found.origin is not None
    folder = Path(found.origin).parent
    files = {}
    for path in folder.glob("*.py"):
        if PLUGIN_LINE.search(path.read_text(encoding="utf-8")):
            as_file = package in AS_FILES
            files[path.stem if as_file else path.stem.replace("_", "-")] = path.stem
    listed = folder / FAMILIES
    families = tomllib.loads(listed.read_text()) if listed.exists() else {}
    for file, several in families.items():
        files |= dict.fromkeys(several, file)
    return dict(sorted(files.items()))


def find_built_in(package: str, name: str) -> tuple[Any, str]:
    """Import a built-in plugin and return it with its description.

    The plugin is ``plugins[name]`` of a file with several, else ``plugin``. The description
    is its ``about`` or docstring in a file with several, else the docstring of the file.
    """
    module = importlib.import_module(f"{package}.{_files(package)[name]}")
    if hasattr(module, "plugin"):
        return module.plugin, module.__doc__ or ""
    plugin = module.plugins[name]
    return plugin, getattr(plugin, "about", "") or plugin.__doc__ or ""


def find(package: str, key: str, name: str) -> Any:
    """Return the plugin of ``package`` that the configuration names at ``key``.

    A built-in name such as ``fedavg-c`` means the attribute ``plugin`` of
    ``package.fedavg_c``, or an entry of ``plugins`` in a file with several. Any name
    ``module:object`` means a user's own, imported from the current folder or Python's
    path. Raises UserError with the nearest valid name, or with the file and line of a
    failure in the user's module.
    """
    if not isinstance(name, str):
        raise UserError(
            f"{key} = {name!r}: must be a string; allowed: {', '.join(names(package))}, or your "
            "own 'module:object'"
        )
    if ":" in name:
        return _user_object(package, key, name)
    if name not in names(package):
        raise UserError(
            f"{key} = '{name}' is unknown{suggest(name, names(package))}, or your own "
            "'module:object'"
        )
    return find_built_in(package, name)[0]


def _user_object(package: str, key: str, name: str) -> Any:
    """Return a user's own plugin, ``module:object``. Raises UserError."""
    module_name, _, attribute = name.partition(":")
    with _from_here():
        module = _imported(key, name, module_name)
    try:
        plugin = getattr(module, attribute)
    except AttributeError:
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(
            f"{key} = '{name}': '{module_name}' has no "
            f"'{attribute}'{suggest(attribute, public)}"
        ) from None
    if problem := _misfit(package, plugin):
        raise UserError(f"{user_code.locate(plugin)}{key} = '{name}' {problem}")
    return plugin


def _imported(key: str, name: str, module_name: str) -> ModuleType:
    """Import and return a user's module.

    Raises UserError with the file and line of a failure in the module.
    """
    first = module_name.partition(".")[0]
    if (other := _hidden_by(first)) is not None:
        raise UserError(
            f"{key} = '{name}': '{first}' is the name of {other}; give your {first}.py "
            "another name"
        )
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if (place := user_code.find_line(error)) is not None:
            text = f"cannot be imported: {user_code.describe_error(error)}"
            raise UserError(f"{place}: {key} = '{name}' {text}") from error
        raise UserError(
            f"{key} = '{name}': cannot import '{module_name}' ({user_code.describe_error(error)}); "
            "run from its folder or put that folder on PYTHONPATH"
        ) from error


def _hidden_by(module_name: str) -> str | None:
    """Return the other module that hides the user's file of this name, or None.

    The file is in the current folder.
    """
    here, loaded = Path.cwd() / f"{module_name}.py", sys.modules.get(module_name)
    if not here.exists():
        return None
    if module_name in sys.stdlib_module_names:
        return "a module of Python"
    other = getattr(loaded, "__file__", None)
    return None if other is None or Path(other).resolve() == here.resolve() else other


@contextmanager
def _from_here() -> Iterator[None]:
    """Search the current folder first for modules, inside the block only."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _misfit(package: str, thing: Any) -> str | None:
    """Return why a user's object is no plugin of the package; None if it is one.

    It must be a subclass of the package's contract, for data sources an instance of
    one, and for models any callable.
    """
    kind = (
        f"the class {thing.__name__}"
        if isinstance(thing, type)
        else f"of type {type(thing).__name__}"
    )
    if package not in CONTRACTS:
        return (
            None
            if callable(thing)
            else f"is {kind}; expected a class or function that makes the model"
        )
    whole = CONTRACTS[package]
    module, _, name = whole.rpartition(".")
    contract = getattr(importlib.import_module(module), name)
    if package == "hpcfl.data.sources":
        return (
            None
            if isinstance(thing, contract)
            else f"is {kind}; expected an instance of a subclass of {whole}"
        )
    if not (isinstance(thing, type) and issubclass(thing, contract)):
        return f"is {kind}; expected a subclass of {whole}"
    missing = sorted(getattr(thing, "__abstractmethods__", ()))
    return f"does not define {', '.join(missing)}" if missing else None


def find_common_keys(section: str) -> "type[Section]":
    """Return the class of the common keys of a section that names a plugin."""
    from hpcfl.experiment import sections

    *_, name = PLUGINS[section]
    return cast("type[Section]", getattr(sections, name))


def find_in_section(place: str, given: Mapping[str, Any]) -> Any:
    """Return the plugin that a section names.

    place: the section, or ``shift.0`` for a table of ``[[shift]]``. Raises UserError.
    """
    section = place.partition(".")[0]
    key, package, _ = PLUGINS[section]
    field = find_common_keys(section).model_fields[key]
    if key not in given and field.is_required():
        allowed = ", ".join(names(package)) or "your own 'module:object'"
        raise UserError(f"'{place}.{key}' is missing; allowed: {allowed}")
    return find(package, f"{place}.{key}", given.get(key, field.default))


@cache
def _options(make: Callable[..., Any], *first: str) -> "type[BaseModel]":
    """Return a section with a callable's parameters after the ``first`` ones as keys.

    The keys have the parameters' types, defaults and constraints. Each callable's
    section is made once, because making it takes longer than reading one. Raises
    TypeError for other first parameters, and the exceptions of inspect and pydantic for
    types that no file can hold.
    """
    import pydantic

    from hpcfl.experiment.sections import Section

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


def _own_keys(
    make: Callable[..., Any], first: list[str], what: str
) -> "type[BaseModel]":
    """Return the section of the own keys of ``make``.

    Raises UserError with the required signature of ``what`` the user named.
    """
    from pydantic import PydanticUserError

    try:
        return _options(make, *first)
    except (TypeError, ValueError, NameError, PydanticUserError) as error:
        raise UserError(
            f"{what} must be called as ({', '.join(first)}, *, own keys) with types "
            f"that a file can hold: {' '.join(str(error).split())}"
        ) from None


def make_section(place: str, given: Mapping[str, Any]) -> "Section":
    """Return a section that names a plugin, with the plugin's own keys.

    place: as for ``find_in_section``. Raises UserError, or pydantic's ValidationError for wrong
    values.
    """
    if place not in ("data", "model"):
        return cast("Section", find_in_section(place, given)(**given))
    common = find_common_keys(place)
    shared = {key: value for key, value in given.items() if key in common.model_fields}
    own = {key: value for key, value in given.items() if key not in shared}
    options = fields_class(place, given)(**own).model_dump()
    return common(**{**shared, "options": options})


def fields_class(place: str, given: Mapping[str, Any]) -> "type[BaseModel]":
    """Return the class whose fields are the own keys of a section's plugin.

    For a data set they are the parameters of its source's ``read``, for a model those
    of the callable that makes it. Raises UserError.
    """
    plugin = find_in_section(place, given)
    if place not in ("data", "model"):
        return cast("type[BaseModel]", plugin)
    key = SELECTORS[place]
    name = given.get(key, find_common_keys(place).model_fields[key].default)
    called = f"{place}.{key} = '{name}'"
    if place == "data":
        return _own_keys(plugin.read, ["name", "root"], f"{called}: read")
    return _own_keys(plugin, ["shape", "classes"], called)


def list_fields(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid keys of a section that names a plugin, with pydantic's fields.

    Raises UserError.
    """
    own = fields_class(place, given).model_fields
    if place not in ("data", "model"):
        return dict(own)
    shared = {**find_common_keys(place).model_fields, **own}
    del shared["options"]
    return shared


def is_selector(key: str) -> bool:
    """Return whether a dotted key names a section's plugin, as ``model.name`` does."""
    section, _, selector = key.partition(".")
    return SELECTORS.get(section) == selector


def list_stale_keys(section: str, given: dict[str, Any], name: Any) -> set[str]:
    """Return the keys that a section has with the plugin of ``given`` but not with
    ``name``.

    The result is empty if either plugin is unknown.
    """
    try:
        keys = set(list_fields(section, given))
        keys_of_other = set(list_fields(section, {SELECTORS[section]: name}))
    except UserError:
        return set()
    return keys - keys_of_other


def find_own_names(table: Mapping[str, Any]) -> set[str]:
    """Return the user's own plugins, ``module:object``, that a resolved configuration
    names.
    """
    evaluation = table.get("evaluation", {})
    names = [*evaluation.get("scores", []), evaluation.get("metric")]
    for section, (key, *_) in PLUGINS.items():
        given = table.get(section) or []
        tables = given if isinstance(given, list) else [given]
        names += [one.get(key) for one in tables]
    return {name for name in names if ":" in str(name)}


def refuse_unnamed(table: Mapping[str, Any], own: Collection[str], run: object) -> None:
    """Raise UserError for a user's own plugin in the configuration of a stored run that
    is not in ``own``: code that only a folder names is never imported.
    """
    with refuse_unreadable(run, "a configuration"):
        unnamed = sorted(find_own_names(table) - set(own))
    if unnamed:
        options = " ".join(f"--own {name}" for name in unnamed)
        raise UserError(
            f"{run}: was run with your own {', '.join(unnamed)}, which is imported "
            f"only where you name it: {options}, from Python "
            f"hpcfl.load(…, own={unnamed})"
        )
