"""Parameters and layers by patterns of their dotted names, such as ``*.A``."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from hpcfl.errors import UserError
from hpcfl.experiment.plugins import nearest


def matching(patterns: Sequence[str], names: Iterable[str], key: str) -> list[str]:
    """Return the names that a pattern matches, in their own order.

    A pattern also matches the contents of a module: ``blocks.1`` matches all of
    ``blocks.1.*``. In a pattern ``*`` stands for any characters, dots included.

    Args:
        key: The key of the experiment that holds the patterns, for errors.

    Raises:
        UserError: A pattern matches none of the names.
    """
    names = list(names)
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if _matches(pattern, name)}
        if not matched:
            raise UserError(
                f"{key}: '{pattern}' matches none of the names{nearest(pattern, names)}"
            )
        found |= matched
    return [name for name in names if name in found]


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name, or that of a module around it."""
    parts = name.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(fnmatchcase(one, pattern) for one in around)
