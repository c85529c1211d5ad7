r"""Rules that map the names of a file's tensors to a model's names (``adapter.names``,
adapters.md §3).

A rule is a regular expression, which must match a whole name, and one or several new
names:

* ``\1`` in a name stands for the text of the first group, ``\1+1`` for the number after
  it;
* ``transposed NAME`` is a parameter whose transposed matrix the file has;
* ``reshaped NAME`` is a parameter with the file's numbers in the same order and another
  shape;
* with several names each gets a piece of the tensor, in order along its first
  dimension; a rule without a name skips the tensor;
* tensors with the same new name are joined along their first dimension, in the order of
  the rules.

The first matching rule applies. A tensor without a matching rule keeps its name.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from hpcfl.adapters.published import PUBLISHED, Rules
from hpcfl.errors import UserError
from hpcfl.experiment.plugins import nearest

KEY = "adapter.names"


@dataclass(frozen=True)
class Piece:
    """A tensor of a file as a parameter of the model, or as a part of one.

    Attributes:
        tensor: Its name in the file.
        rule: The number of the rule.
        change: "transposed", "reshaped" or "".
        number: The index of the piece within the tensor.
        pieces: The number of pieces of the tensor.
    """

    tensor: str
    rule: int
    change: str = ""
    number: int = 0
    pieces: int = 1

    def cut(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return this piece of the file's tensor, for a parameter of a ``shape``.

        Raises RuntimeError or IndexError where the tensor has no such piece.
        """
        if self.change == "transposed":
            tensor = tensor.t()
        if self.pieces > 1:
            size = tensor.shape[0] // self.pieces
            tensor = tensor.unflatten(0, (self.pieces, size))[self.number]
        if self.change == "reshaped":
            tensor = tensor.reshape(list(shape))
        return tensor


@dataclass(frozen=True)
class _Rule:
    """An expression and the new names of a matching tensor."""

    number: int
    expression: re.Pattern[str]
    names: list[str]

    def pieces(self, tensor: str) -> dict[str, Piece] | None:
        """Return a tensor's pieces by the parameters' names, or None if the expression
        does not match.
        """
        match = self.expression.fullmatch(tensor)
        if match is None:
            return None
        found = {}
        for number, name in enumerate(self.names):
            change, _, plain = name.rpartition(" ")
            piece = Piece(tensor, self.number, change, number, len(self.names))
            found[_filled(plain, match)] = piece
        return found


def renamed(tensors: Iterable[str], names: str | Rules) -> dict[str, list[Piece]]:
    """Return the pieces of each parameter, by the parameters' names.

    Args:
        tensors: The names in the file.
        names: Rules, or the name of a published model.

    Raises:
        UserError: There are no rules of this name, or a rule is invalid.
    """
    rules = _rules(names)
    found: dict[str, list[Piece]] = {}
    for tensor in tensors:
        for name, piece in _pieces(tensor, rules).items():
            found.setdefault(name, []).append(piece)
    for name, pieces in found.items():
        pieces.sort(key=lambda piece: piece.rule)
        for one, other in pairwise(pieces):
            if one.rule == other.rule:
                raise UserError(
                    f"{KEY}: both '{one.tensor}' and '{other.tensor}' become '{name}' by "
                    "one rule; two rules say which comes first where they are to be joined"
                )
    return found


def _pieces(tensor: str, rules: Sequence[_Rule]) -> dict[str, Piece]:
    """Return a tensor's pieces by the first matching rule."""
    for rule in rules:
        pieces = rule.pieces(tensor)
        if pieces is not None:
            return pieces
    return {tensor: Piece(tensor, len(rules))}


def _rules(names: str | Rules) -> list[_Rule]:
    """Return the rules after checking each. Raises UserError."""
    if isinstance(names, str):
        if names not in PUBLISHED:
            raise UserError(f"{KEY} = '{names}'{nearest(names, PUBLISHED)}")
        names = PUBLISHED[names]
    rules = []
    for number, (pattern, given) in enumerate(names.items()):
        expression = _compiled(pattern)
        wanted = [given] if isinstance(given, str) else list(given)
        for name in wanted:
            _check(name, expression)
        rules.append(_Rule(number, expression, wanted))
    return rules


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises UserError."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise UserError(
            f"{KEY}: '{pattern}' is no regular expression: {error}"
        ) from None


def _check(name: str, expression: re.Pattern[str]) -> None:
    """Raise UserError for a name that no match of the expression can produce."""
    change, space, _ = name.rpartition(" ")
    if space and change not in ("transposed", "reshaped"):
        raise UserError(
            f"{KEY}: '{name}' must be a name, or 'transposed' or 'reshaped' and a name"
        )
    for group in re.findall(r"\\(\d)", name):
        if int(group) > expression.groups:
            raise UserError(
                f"{KEY}: '{name}' has \\{group}, and '{expression.pattern}' only "
                f"{expression.groups} groups"
            )


def _filled(name: str, match: re.Match[str]) -> str:
    """Fill the groups of a match into a name.

    Raises UserError where ``+1`` follows a text that is no number.
    """

    def value(found: re.Match[str]) -> str:
        group = match[int(found[1])] or ""
        if not found[2]:
            return group
        if not group.isdecimal():
            raise UserError(
                f"{KEY}: '{name}' counts from '{group}', which is no number, for "
                f"'{match.string}'"
            )
        return str(int(group) + 1)

    return re.sub(r"\\(\d)(\+1)?", value, name)
