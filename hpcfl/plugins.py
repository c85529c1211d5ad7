"""Finding methods, models and partition schemes by name: a built-in file's name, or a user's ``module:object``."""

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcfl.errors import UserError


def names(package: str) -> list[str]:
    """The built-in names of a package: its public files, with ``-`` for ``_``."""
    path = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_"))
    return sorted(name.replace("_", "-") for name in found if name != "base")


def nearest(word: str, allowed: Iterable[str]) -> str:
    """``; did you mean 'x'? (allowed: …)``: the end of an error line about an unknown word."""
    allowed = list(allowed)
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ";"
    return f"{hint} allowed: {', '.join(allowed)}"


def find(package: str, key: str, name: str) -> Any:
    """The object a configuration names at ``key``.

    A built-in name ``fedavg-c`` is ``package.fedavg_c``'s attribute ``plugin``; ``module:object`` is imported as
    written, with the current folder importable. Raises UserError with the nearest valid name.
    """
    if not isinstance(name, str):
        raise UserError(f"{key} = {name!r}: must be a string; allowed: {', '.join(names(package))}, or your own 'module:object'")
    if ":" in name:
        return _user_object(key, name)
    if name not in names(package):
        raise UserError(f"{key} = '{name}' is unknown{nearest(name, names(package))}, or your own 'module:object'")
    return importlib.import_module(f"{package}.{name.replace('-', '_')}").plugin


def _user_object(key: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"{key} = '{name}': cannot import '{module_name}' ({error}); run from its folder or "
                        "put that folder on PYTHONPATH") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(f"{key} = '{name}': '{module_name}' has no '{attribute}'{nearest(attribute, public)}") from None
