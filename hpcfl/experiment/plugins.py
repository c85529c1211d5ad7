"""Plugins (methods, models, scores and others) by name, built-in or a user's
``module:object``, and the sections of an experiment that contain a plugin's keys.
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
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hpcfl.errors import UserError, suggest
from hpcfl.experiment import user_code
from hpcfl.files.untrusted_files import compute_sha256, refuse_unreadable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hpcfl.experiment.sections import Section

# Base class of a user's plugin, by package. A model may be any callable.
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
# Line that marks a module of a package as a plugin.
PLUGIN_LINE = re.compile(r"^(plugin = |def plugin\()", re.MULTILINE)
FAMILIES = "families.toml"  # in a package: the files with several plugins, with names
AS_FILES = (
    "hpcfl.scores",
)  # packages whose built-in names keep ``_``, like the metrics in the results
# By section: the key with the plugin's name, the package of the plugins, and the class
# of their common keys in ``sections``. The class is a name, because commands that only
# read results do not import ``sections``.
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
# Sections with the keys of their plugins in ``options``. These plugins are no sections,
# unlike all others; their keys are the parameters of a function.
WITH_OPTIONS = ("data", "model")
# Sections that are lists of tables, such as ``[[shift]]``.
LISTS = ("shift", "overlay", "transform")
SELECTORS = {
    section: key for section, (key, *_) in PLUGINS.items() if section not in LISTS
}
# Attribute that is added to a user's module, an ``Import``.
IMPORTED = "__hpcfl_import__"


class Import(NamedTuple):
    """Import of a user's module.

    Attributes:
        spec: Specification of the module, which ``importlib.reload`` replaces.
        sha256: SHA-256 of its file at the import; "" without a file.
        further: Names of the user's modules that it imported first.
    """

    spec: ModuleSpec | None
    sha256: str
    further: tuple[str, ...] = ()


@cache
def list_names(package: str) -> tuple[str, ...]:
    """Return the names of a package's built-in plugins.

    A file with a ``plugin`` gives its name, with ``-`` for ``_`` except in AS_FILES.
    FAMILIES lists the names in files with several plugins.
    """
    return tuple(_list_files(package))


@cache
def _list_files(package: str) -> dict[str, str]:
    """Return the file of each built-in name of a package, in the order of names."""
    found = importlib.util.find_spec(package)  # does not import the package
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

    In a file with several plugins, the plugin is ``plugins[name]`` and the description
    its ``about`` or docstring. Otherwise the plugin is ``plugin`` and the description
    the docstring of the file.
    """
    module = importlib.import_module(f"{package}.{_list_files(package)[name]}")
    if hasattr(module, "plugin"):
        return module.plugin, module.__doc__ or ""
    plugin = module.plugins[name]
    return plugin, getattr(plugin, "about", "") or plugin.__doc__ or ""


def find(package: str, key: str, name: str) -> Any:
    """Return the plugin that the configuration names at ``key``.

    Args:
        package: The package of the built-in plugins.
        key: The key of the configuration, for error messages.
        name: A built-in name such as ``fedavg-c``, which is the attribute ``plugin`` of
            ``package.fedavg_c`` or an entry of ``plugins`` in a file with several
            plugins; or a user's ``module:object``, which is imported from the current
            folder or Python's path.

    Raises:
        UserError: The name is unknown; the message has the nearest valid one. Or the
            import of the user's module fails; the message has file and line.
    """
    if not isinstance(name, str):
        raise UserError(
            f"{key} = {name!r}: must be a string; allowed: {', '.join(list_names(package))}, or your "
            "own 'module:object'"
        )
    if ":" in name:
        return _find_user_object(package, key, name)
    if name not in list_names(package):
        raise UserError(
            f"{key} = '{name}' is unknown{suggest(name, list_names(package))}, or your own "
            "'module:object'"
        )
    return find_built_in(package, name)[0]


def _find_user_object(package: str, key: str, name: str) -> Any:
    """Return a user's plugin ``module:object``.

    Raises UserError if it cannot be imported or has the wrong type.
    """
    module_name, _, attribute = name.partition(":")
    with _search_here():
        module = _import_user_module(key, name, module_name)
    try:
        plugin = getattr(module, attribute)
    except AttributeError:
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(
            f"{key} = '{name}': '{module_name}' has no "
            f"'{attribute}'{suggest(attribute, public)}"
        ) from None
    if problem := _describe_misfit(package, plugin):
        raise UserError(f"{user_code.locate(plugin)}{key} = '{name}' {problem}")
    return plugin


def _import_user_module(key: str, name: str, module_name: str) -> ModuleType:
    """Import and return a user's module.

    Raises UserError, with file and line if the module's code fails.
    """
    first = module_name.partition(".")[0]
    if (other := _find_hiding_module(first)) is not None:
        raise UserError(
            f"{key} = '{name}': '{first}' is the name of {other}; rename your {first}.py"
        )
    before = set(sys.modules)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if (place := user_code.find_line(error)) is not None:
            text = f"cannot be imported: {user_code.describe_error(error)}"
            raise UserError(f"{place}: {key} = '{name}' {text}") from error
        remedy = "run in the folder of the file or add this folder to PYTHONPATH"
        if module_name.endswith(".py"):
            remedy = f"leave out .py, as in '{name.replace('.py:', ':')}'"
        raise UserError(
            f"{key} = '{name}': cannot import '{module_name}' "
            f"({user_code.describe_error(error)}); {remedy}"
        ) from error
    further = []
    for other in sorted(set(sys.modules) - before - {module_name}):
        file = getattr(sys.modules[other], "__file__", None)
        if file is not None and user_code.is_own(file):
            _note_import(sys.modules[other])
            further.append(other)
    _note_import(module, tuple(further))
    return module


def _note_import(module: ModuleType, further: tuple[str, ...] = ()) -> None:
    """Add the attribute IMPORTED to a user's module that is new or was loaded again."""
    known: Import | None = getattr(module, IMPORTED, None)
    if known is None:
        known = Import(None, "", further)
    if known.spec is not module.__spec__:
        noted = known._replace(spec=module.__spec__, sha256=_hash_file(module))
        setattr(module, IMPORTED, noted)


def _hash_file(module: ModuleType) -> str:
    """Return the SHA-256 of a module's file; "" without a file."""
    path = Path(getattr(module, "__file__", None) or "")
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return compute_sha256(file)


def _find_hiding_module(module_name: str) -> str | None:
    """Return the module that hides the file of this name in the current folder, or
    None.
    """
    here, loaded = Path.cwd() / f"{module_name}.py", sys.modules.get(module_name)
    if not here.exists():
        return None
    if module_name in sys.stdlib_module_names:
        return "a module of Python"
    other = getattr(loaded, "__file__", None)
    return None if other is None or Path(other).resolve() == here.resolve() else other


@contextmanager
def _search_here() -> Iterator[None]:
    """Let imports inside the block search the current folder first."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _describe_misfit(package: str, thing: Any) -> str | None:
    """Return the reason why a user's object is no plugin of the package, or None.

    A plugin must be a subclass of the package's entry in CONTRACTS, a data source an
    instance of such a subclass, a model or a kind of figure a callable.
    """
    kind = f"of type {type(thing).__name__}"
    if isinstance(thing, type):
        kind = f"the class {thing.__name__}"
    if package not in CONTRACTS:
        if callable(thing):
            return None
        return f"is {kind}; expected a class or function"
    whole = CONTRACTS[package]
    module, _, name = whole.rpartition(".")
    contract = getattr(importlib.import_module(module), name)
    if package == "hpcfl.data.sources":
        if isinstance(thing, contract):
            return None
        return f"is {kind}; expected an instance of a subclass of {whole}"
    if not (isinstance(thing, type) and issubclass(thing, contract)):
        return f"is {kind}; expected a subclass of {whole}"
    missing = sorted(getattr(thing, "__abstractmethods__", ()))
    return f"does not define {', '.join(missing)}" if missing else None


def find_common_keys(section: str) -> "type[Section]":
    """Return the class with the common keys of a section in PLUGINS."""
    from hpcfl.experiment import sections

    *_, name = PLUGINS[section]
    return cast("type[Section]", getattr(sections, name))


def find_in_section(place: str, given: Mapping[str, Any]) -> Any:
    """Return the plugin that a section names.

    Args:
        place: The section, or ``shift.0`` for a table of ``[[shift]]``.
        given: The keys and values of the section.

    Raises:
        UserError: The name is missing, unknown or unusable.
    """
    section = place.partition(".")[0]
    key, package, _ = PLUGINS[section]
    field = find_common_keys(section).model_fields[key]
    if key not in given and field.is_required():
        allowed = ", ".join(list_names(package)) or "your own 'module:object'"
        raise UserError(f"'{place}.{key}' is missing; allowed: {allowed}")
    return find(package, f"{place}.{key}", given.get(key, field.default))


@cache
def _make_options(make: Callable[..., Any], *first: str) -> "type[BaseModel]":
    """Return a section class whose keys are a callable's parameters after the ``first``
    ones, with their types, defaults and constraints.

    The result is cached, because making a class is slow.

    Raises:
        TypeError: The callable has other first parameters.
        ValueError, NameError, PydanticUserError: A type cannot be resolved, or no file
            can contain it.
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


def _make_plugin_class(
    make: Callable[..., Any], first: list[str], what: str
) -> "type[BaseModel]":
    """Return the section class with the parameters of ``make`` after the ``first``
    ones.

    Args:
        make: The callable.
        first: The names of its required first parameters.
        what: The callable's name at the beginning of an error message.

    Raises:
        UserError: The signature is wrong; the message has the required one.
    """
    from pydantic import PydanticUserError

    try:
        return _make_options(make, *first)
    except (TypeError, ValueError, NameError, PydanticUserError) as error:
        raise UserError(
            f"{what} must be called as ({', '.join(first)}, *, own keys) with types "
            f"that a file can hold: {' '.join(str(error).split())}"
        ) from None


def make_section(place: str, given: Mapping[str, Any]) -> "Section":
    """Return a section with the common keys and the keys of its plugin.

    The arguments are those of ``find_in_section``.

    Raises:
        UserError: The plugin is missing, unknown or unusable.
        pydantic.ValidationError: A key or value is wrong.
    """
    if place not in WITH_OPTIONS:
        return cast("Section", find_in_section(place, given)(**given))
    common = find_common_keys(place)
    # "options" is no key of a file; it contains the own keys.
    known = common.model_fields.keys() - {"options"}
    shared = {key: value for key, value in given.items() if key in known}
    own = {key: value for key, value in given.items() if key not in shared}
    options = find_plugin_class(place, given)(**own).model_dump()
    return common(**{**shared, "options": options})


def find_plugin_class(place: str, given: Mapping[str, Any]) -> "type[BaseModel]":
    """Return the class whose fields are the keys of a section's plugin.

    For a data set these are the parameters of its source's ``read``, for a model the
    parameters of its callable. Raises UserError as ``find_in_section``.
    """
    plugin = find_in_section(place, given)
    if place not in WITH_OPTIONS:
        return cast("type[BaseModel]", plugin)
    key = SELECTORS[place]
    common = find_common_keys(place).model_fields
    name = given.get(key, common[key].default)
    called = f"{place}.{key} = '{name}'"
    if place == "data":
        own = _make_plugin_class(plugin.read, ["name", "root"], f"{called}: read")
    else:
        own = _make_plugin_class(plugin, ["shape", "classes"], called)
    for parameter in own.model_fields:
        if parameter in common:
            raise UserError(
                f"{user_code.locate(plugin)}{called}: its parameter '{parameter}' would never "
                f"get a value, because [{place}] has a key of this name; rename it"
            )
    return own


def list_fields(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return pydantic's field of each valid key of a section in PLUGINS.

    Raises UserError as ``find_in_section``.
    """
    own = find_plugin_class(place, given).model_fields
    if place not in WITH_OPTIONS:
        return dict(own)
    shared = {**find_common_keys(place).model_fields, **own}
    del shared["options"]
    return shared


def is_selector(key: str) -> bool:
    """Return whether a dotted key selects a section's plugin, such as ``model.name``."""
    section, _, selector = key.partition(".")
    return SELECTORS.get(section) == selector


def list_stale_keys(section: str, given: dict[str, Any], name: Any) -> set[str]:
    """Return the keys that a section has with the plugin of ``given``, but not with the
    plugin ``name``; an empty set if either is unknown.
    """
    try:
        keys = set(list_fields(section, given))
        keys_of_other = set(list_fields(section, {SELECTORS[section]: name}))
    except UserError:
        return set()
    return keys - keys_of_other


def find_own_names(table: Mapping[str, Any]) -> set[str]:
    """Return the names ``module:object`` of the user's plugins in a resolved
    configuration.
    """
    evaluation = table.get("evaluation", {})
    names = [*evaluation.get("scores", []), evaluation.get("metric")]
    for section, (key, *_) in PLUGINS.items():
        given = table.get(section) or []
        tables = given if isinstance(given, list) else [given]
        names += [one.get(key) for one in tables]
    # The metric may be a summary of a score, SCORE/SUMMARY.
    return {str(name).partition("/")[0] for name in names if ":" in str(name)}


def hash_own_files(table: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each file with a user's plugin, and of the user's modules
    that it imported first, at their import, by ``MODULE.py``.

    Args:
        table: Resolved configuration, whose plugins are imported.
    """
    hashes = {}
    for module_name, module in _list_own_modules(table).items():
        sha256 = getattr(module, IMPORTED).sha256
        if sha256:
            hashes[f"{module_name}.py"] = sha256
    return hashes


def describe_edited(table: Mapping[str, Any]) -> list[str]:
    """Return a note for each file of ``hash_own_files`` that has changed since its
    import.

    Args:
        table: Resolved configuration, whose plugins are imported.
    """
    notes = []
    for module_name, module in _list_own_modules(table).items():
        if _hash_file(module) != getattr(module, IMPORTED).sha256:
            notes.append(
                f"{module_name}.py has changed since its import, and the run uses the "
                f"imported code; type import importlib, {module_name}; "
                f"importlib.reload({module_name}), or restart Python"
            )
    return notes


def _list_own_modules(table: Mapping[str, Any]) -> dict[str, ModuleType]:
    """Return the imported modules with a user's plugin, and the user's modules that they
    imported first, by name, sorted.
    """
    names = set()
    for name in find_own_names(table):
        module_name = name.partition(":")[0]
        plugin = sys.modules.get(module_name)
        names |= {module_name, *getattr(plugin, IMPORTED, Import(None, "")).further}
    modules = {}
    for name in sorted(names):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, IMPORTED):
            modules[name] = module
    return modules


def refuse_unnamed(table: Mapping[str, Any], own: Collection[str], run: object) -> None:
    """Raise UserError if a stored run used a plugin of a user that is not in ``own``,
    because code is imported only if the user names it in the command.

    Args:
        table: The run's resolved configuration.
        own: The names ``module:object`` that the user has given.
        run: The run's folder, for error messages.
    """
    with refuse_unreadable(run, "a configuration"):
        unnamed = sorted(find_own_names(table) - set(own))
    if unnamed:
        options = " ".join(f"--own {name}" for name in unnamed)
        raise UserError(
            f"{run}: uses your own {', '.join(unnamed)}, which is imported only if "
            f"you name it: {options}, or in Python hpcfl.load(…, own={unnamed})"
        )
