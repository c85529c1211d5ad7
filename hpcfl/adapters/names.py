r"""Rules that map the names of a file's tensors to a model's names (``adapter.names``,
adapters.md §3).

A rule consists of a pattern, which must match a whole name, and one or several new
names:

* ``*`` in a pattern matches one part of a dotted name, and ``**``, at most once, matches
  any number of parts, including none;
* ``\1`` in a name is replaced by the text of the first wildcard, ``\1+1`` by the number
  in this text plus one;
* ``transposed NAME`` means that the file has the transposed matrix of a parameter;
* ``reshaped NAME`` means that the file has a parameter's numbers in the same order and
  another shape;
* with several names, each parameter is a piece of the tensor, in order along the first
  dimension; a rule without a name skips the tensor;
* tensors with the same new name are joined along their first dimension, in the order of
  the rules.

The first matching rule applies. A tensor without a matching rule keeps its name.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from hpcfl.adapters.published import PUBLISHED, Rules
from hpcfl.errors import UserError, suggest

KEY = "adapter.names"
WILDCARDS = ("*", "**")
CHANGES = ("", "transposed", "reshaped")


@dataclass(frozen=True)
class Piece:
    """A file's tensor, or a piece of it, that is a parameter of the model or a part of
    one.

    Attributes:
        tensor: Name of the tensor in the file.
        rule: Number of the rule.
        change: Change of the tensor, "transposed", "reshaped" or "".
        number: Index of the piece within the tensor.
        pieces: Number of pieces of the tensor.
    """

    tensor: str
    rule: int
    change: str = ""
    number: int = 0
    pieces: int = 1

    def cut(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return this piece of the file's tensor, for a parameter of a ``shape``.

        Raises RuntimeError or IndexError if the tensor does not have this piece.
        """
        if self.change == "transposed":
            tensor = tensor.t()
        if self.pieces > 1:
            size = tensor.shape[0] // self.pieces
            tensor = tensor.unflatten(0, (self.pieces, size))[self.number]
        if self.change == "reshaped":
            tensor = tensor.reshape(list(shape))
        return tensor


def find_all_pieces(
    tensors: Iterable[str], names: str | Rules
) -> dict[str, list[Piece]]:
    """Return the pieces of each parameter, by the parameters' names.

    Args:
        tensors: The names in the file.
        names: Rules, or the name of a published model.

    Raises:
        UserError: No published model has this name, or a rule is invalid.
    """
    rules = _check_rules(names)
    found: dict[str, list[Piece]] = {}
    for tensor in tensors:
        for name, piece in _find_pieces(tensor, rules).items():
            found.setdefault(name, []).append(piece)
    for name, pieces in found.items():
        pieces.sort(key=lambda piece: piece.rule)
        for one, other in pairwise(pieces):
            if one.rule == other.rule:
                raise UserError(
                    f"{KEY}: both '{one.tensor}' and '{other.tensor}' become '{name}' by "
                    "one rule; to join them, write two rules in their order"
                )
    return found


def _find_pieces(tensor: str, rules: Mapping[str, Sequence[str]]) -> dict[str, Piece]:
    """Return a tensor's pieces by the parameters' names, by the first matching rule.

    Raises UserError for a name that no match can produce.
    """
    for rule, (pattern, names) in enumerate(rules.items()):
        texts = _match(pattern, tensor)
        if texts is None:
            continue
        found = {}
        for number, name in enumerate(names):
            change, _, plain = name.rpartition(" ")
            if change not in CHANGES:
                raise UserError(
                    f"{KEY}: '{name}' must be a name, or 'transposed' or 'reshaped' and "
                    "a name"
                )
            piece = Piece(tensor, rule, change=change, number=number, pieces=len(names))
            found[_fill(plain, texts)] = piece
        return found
    return {tensor: Piece(tensor, len(rules))}


def _match(pattern: str, tensor: str) -> list[str] | None:
    """Return the texts that the wildcards match, or None without a match."""
    wanted, parts = pattern.split("."), tensor.split(".")
    if "**" in wanted and len(parts) >= len(wanted) - 1:
        start = wanted.index("**")
        stop = start + 1 + len(parts) - len(wanted)
        parts[start:stop] = [".".join(parts[start:stop])]
    if len(parts) != len(wanted):
        return None
    texts = []
    for part, name in zip(parts, wanted, strict=True):
        if name in WILDCARDS:
            texts.append(part)
        elif part != name:
            return None
    return texts


def _check_rules(names: str | Rules) -> dict[str, Sequence[str]]:
    """Return the new names by pattern, after checking the patterns. Raises UserError."""
    if isinstance(names, str):
        if names not in PUBLISHED:
            raise UserError(f"{KEY} = '{names}'{suggest(names, PUBLISHED)}")
        names = PUBLISHED[names]
    rules = dict[str, Sequence[str]]()
    for pattern, given in names.items():
        _check(pattern)
        rules[pattern] = [given] if isinstance(given, str) else given
    return rules


def _check(pattern: str) -> None:
    """Raise UserError for an invalid pattern."""
    parts = pattern.split(".")
    is_odd = any("*" in part or "\\" in part for part in parts if part not in WILDCARDS)
    if is_odd or parts.count("**") > 1:
        raise UserError(
            f"{KEY}: '{pattern}': a pattern is a dotted name with * for one part and at "
            "most one ** for any number of parts, such as 'encoder.*.q.*'"
        )


def _fill(name: str, texts: Sequence[str]) -> str:
    """Fill the texts of wildcards into a name.

    Raises UserError for a missing text, and for ``+1`` after a text that is not a
    number.
    """

    def find_text(found: re.Match[str]) -> str:
        number = int(found[1])
        if not 1 <= number <= len(texts):
            raise UserError(
                f"{KEY}: '{name}' has \\{number}, but its pattern has {len(texts)} wildcards"
            )
        text = texts[number - 1]
        if not found[2]:
            return text
        if not text.isdecimal():
            raise UserError(
                f"{KEY}: '{name}' adds 1 to '{text}', which is not a number"
            )
        return str(int(text) + 1)

    return re.sub(r"\\(\d)(\+1)?", find_text, name)
