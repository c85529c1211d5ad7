"""Finding methods, models, scores … by name: a built-in file's name, or a user's
``module:object``.
"""

import ast
import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment import blame

# What a user's own object must extend, in the ``base`` of each package; a model is any
# callable.
CONTRACTS = {
    "hpcfl.clock.selection": "Selection",
    "hpcfl.methods": "Method",
    "hpcfl.data.partitions": "Scheme",
    "hpcfl.data.shifts": "Shift",
    "hpcfl.data.sources": "Source",
    "hpcfl.scores": "Score",
    "hpcfl.tracking": "Tracker",
}
# What other tools call keys and scores of ours.
SYNONYMS = {
    "learning_rate": "lr",
    "alpha": "beta",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "local_epochs": "epochs",
    "f1_score": "macro_f1",
    "random_state": "seed",
    "images": "image-folder",
    "l2": "weight_decay",
}
MOST = 5  # words that an error names where there are many more
AS_FILES = (
    "hpcfl.scores",
)  # packages whose built-in names keep ``_``, as the numbers in the results do


def names(package: str) -> list[str]:
    """The built-in names of a package: those of its public files, with ``-`` for ``_``
    but in AS_FILES.
    """
    return list(_names(package))


@cache
def _names(package: str) -> tuple[str, ...]:
    found = importlib.util.find_spec(package)  # which does not import it
    assert found is not None
    folders = found.submodule_search_locations
    files = (
        module.name
        for module in pkgutil.iter_modules(folders)
        if not (module.ispkg or module.name.startswith("_"))
    )
    public = sorted(
        name if package in AS_FILES else name.replace("_", "-")
        for name in files
        if name != "base"
    )
    return tuple(public)


def nearest(word: str, allowed: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """``; did you mean 'x'? allowed: …``: the end of an error line about an unknown
    word.

    elsewhere: words that are allowed in another place; one of them may be meant, but
    they are not listed.
    """
    allowed = list(allowed)
    meant = closest(word, allowed) or closest(word, elsewhere)
    return (
        f"; did you mean '{meant}'? allowed: {', '.join(allowed)}"
        if meant
        else (f"; allowed: {', '.join(allowed) or 'none'}")
    )


def few(word: str, allowed: Iterable[str]) -> str:
    """``; did you mean 'x'? nearest of 40: …``: as ``nearest``, where the words are so
    many that only the MOST nearest are named.
    """
    allowed = list(allowed)
    if len(allowed) <= MOST:
        return nearest(word, allowed)
    matcher = difflib.SequenceMatcher(b=word.lower())

    def likeness(one: str) -> float:
        matcher.set_seq1(one.lower())
        return matcher.ratio()

    meant = closest(word, allowed)
    ordered = sorted(allowed, key=lambda one: (one != meant, -likeness(one)))
    asked = f" did you mean '{meant}'?" if meant else ""
    return f";{asked} nearest of {len(allowed)}: {', '.join(ordered[:MOST])}"


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word that was probably meant, also where other tools have another
    word; None if none is.

    That is the same word but for upper case, one that has it at its end or is nearly
    the same, one that has it as a part between dots, dashes and the like, what stands
    for it in SYNONYMS, or one that is spelled somewhat alike; the first of these.
    """
    by_small = {one.lower(): one for one in allowed}
    nearly = difflib.get_close_matches(word.lower(), by_small, n=1, cutoff=0.8)
    for wanted in (word.lower(), SYNONYMS.get(word.lower())):
        whole = [
            small for small in by_small if wanted in (small, small.rpartition(".")[2])
        ]
        if (
            found := whole
            or nearly
            or [small for small in by_small if wanted in re.split(r"[._/-]", small)]
        ):
            return by_small[found[0]]
    alike = difflib.get_close_matches(word.lower(), by_small, n=1, cutoff=0.5)
    return by_small[alike[0]] if alike else None


def find(package: str, key: str, name: str) -> Any:
    """The plugin of ``package`` that the configuration names at ``key``.

    A built-in name such as ``fedavg-c`` means the attribute ``plugin`` of
    ``package.fedavg_c``. Any name ``module:object`` means a user's own, imported from
    the current folder or where Python looks for modules. Raises UserError with the
    nearest valid name, or with the file and line at which a user's module fails.
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
            f"{key} = '{name}' is unknown{nearest(name, names(package))}, or your own "
            "'module:object'"
        )
    return importlib.import_module(f"{package}.{name.replace('-', '_')}").plugin


def _untyped(error: BaseException, key: str) -> str | None:
    """What an attribute without a type lacks, which pydantic refuses in a class whose
    attributes are keys; None for other errors.
    """
    if getattr(error, "code", None) != "model-field-missing-annotation":
        return None
    found = re.search(r"`(\w+) = (.+?)`\. ", str(error))
    if found is None:
        return None
    attribute, value = found.groups()
    try:
        kind = type(ast.literal_eval(value)).__name__
    except (ValueError, SyntaxError):  # not a plain value, as a call of Field
        kind = "TYPE"
    return (
        f"cannot be imported: `{attribute} = {value}` needs a type to be a key of "
        f"[{key.partition('.')[0]}]: `{attribute}: {kind} = {value}`"
    )


def _user_object(package: str, key: str, name: str) -> Any:
    """A user's own plugin, ``module:object``. Raises UserError."""
    module_name, _, attribute = name.partition(":")
    with _from_here():
        module = _imported(key, name, module_name)
    try:
        plugin = getattr(module, attribute)
    except AttributeError:
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(
            f"{key} = '{name}': '{module_name}' has no "
            f"'{attribute}'{nearest(attribute, public)}"
        ) from None
    if problem := _misfit(package, plugin):
        place = blame.definition_of(plugin)
        raise UserError(f"{f'{place}: ' if place else ''}{key} = '{name}' {problem}")
    return plugin


def _imported(key: str, name: str, module_name: str) -> ModuleType:
    """A user's module. Raises UserError, with the file and line at which the module
    fails.
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
        if (place := blame.line_of(error)) is not None:
            text = f"cannot be imported: {blame.said(error)}"
            text = _untyped(error, key) or text
            raise UserError(f"{place}: {key} = '{name}' {text}") from error
        raise UserError(
            f"{key} = '{name}': cannot import '{module_name}' ({blame.said(error)}); "
            "run from its folder or put that folder on PYTHONPATH"
        ) from error


def _hidden_by(module_name: str) -> str | None:
    """Which other module hides the user's file of this name in the current folder; None
    if none does.
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
    """Inside the block, and not longer, modules are looked for in the current folder
    first.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _misfit(package: str, thing: Any) -> str | None:
    """Why a user's object is no plugin of the package; None if it is one.

    It must be a subclass of the package's contract, for data sources an instance of
    one, for models any callable.
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
    contract = getattr(importlib.import_module(f"{package}.base"), CONTRACTS[package])
    whole = f"{contract.__module__}.{contract.__name__}"
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
