"""Parameters and layers by patterns of their dotted names, such as ``*.A``."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from hpcfl.errors import UserError
from hpcfl.experiment.plugins import suggest_from_many


def matching(patterns: Sequence[str], names: Iterable[str], key: str) -> list[str]:
    """Those of the names that a pattern matches, in their own order.

    A pattern also matches whatever lies in a module of such a name: ``blocks.1`` is all
    of ``blocks.1.*``. In a pattern ``*`` is any letters, dots too.

    Args:
        key: the key of the experiment that holds the patterns, for errors.

    Raises:
        UserError: a pattern matches none of the names.
    """
    names = list(names)
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if _matches(pattern, name)}
        if not matched:
            raise UserError(
                f"{key}: '{pattern}' matches none of the names{suggest_from_many(pattern, names)}"
            )
        found |= matched
    return [name for name in names if name in found]


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name, or that of a module around it."""
    parts = name.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(one, pattern) for one in around)
