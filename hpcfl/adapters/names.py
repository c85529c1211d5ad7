r"""The names of a file's tensors as names of a model: rules (``adapter.names``,
adapters.md §3).

A rule is a regular expression and the name, or names, of what it matches as a whole:

* ``\1`` in a name is what the first group matched, ``\1+1`` the number after it;
* ``transposed NAME`` is the parameter of which the file has the transposed matrix, and
  ``reshaped NAME`` one with the file's numbers in their order and a shape of its own;
* of several names each gets a piece of the tensor, one after the other along its first
  dimension; without any name a tensor is left aside;
* tensors of one name are joined along their first dimension, in the order of the rules.

The first rule that matches is the one that counts. What no rule matches keeps its name.
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
# Python tries all ways in which an expression may match, of which there may be more than
# anybody waits for. With these limits no name takes longer than half a second.
LETTERS = 128  # of an expression, and of a name that expressions are tried on
REPEATS = 3  # * + and {} in an expression, none of them behind a group
CHOICES = 6  # | and ? in an expression


@dataclass(frozen=True)
class Piece:
    """What a tensor of a file is for a parameter, or for a part of one.

    Attributes:
        tensor: Its name in the file.
        rule: The number of the rule that says so.
        change: "transposed", "reshaped" or "".
        number, pieces: Which piece of the tensor it is, from 0, and of how many.
    """

    tensor: str
    rule: int
    change: str = ""
    number: int = 0
    pieces: int = 1

    def of(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """This piece of the file's tensor, for a parameter of a ``shape``.

        Raises RuntimeError or IndexError where it has no such piece.
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
    """An expression and the names of what it matches."""

    number: int
    expression: re.Pattern[str]
    names: list[str]

    def pieces(self, tensor: str) -> dict[str, Piece] | None:
        """What a tensor is for parameters, by their names; None where the expression does
        not match.
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
    """Of which tensors of a file the parameters of a model are made, by their names.

    Args:
        tensors: the names in the file.
        names: rules, or the name of a published model.

    Raises:
        UserError: there are no rules of this name, or one of the rules cannot be.
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
    """What a tensor is for parameters by the first rule that matches."""
    for rule in rules if len(tensor) <= LETTERS else ():
        pieces = rule.pieces(tensor)
        if pieces is not None:
            return pieces
    return {tensor: Piece(tensor, len(rules))}


def _rules(names: str | Rules) -> list[_Rule]:
    """The rules, each checked. Raises UserError."""
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
    """A regular expression that takes bounded time. Raises UserError."""
    # what is repeated or chosen, without the letters that only look so
    bare = re.sub(r"\\.", "x", pattern, flags=re.DOTALL)
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "x", bare)
    repeats = len(re.findall(r"[*+{]", bare))
    choices = len(re.findall(r"[|?]", bare.replace("(?:", "(")))
    problem = ""
    if len(pattern) > LETTERS:
        problem = f"has {len(pattern)} letters; at most {LETTERS} are allowed"
    elif re.search(r"\)[*+{]", bare):
        problem = "repeats a group; only single letters and sets may be repeated"
    elif re.search(r"\(\?[^:]", bare) or re.search(r"\\[1-9]", pattern):
        problem = r"may have no groups but (…) and (?:…), and no \1"
    elif repeats > REPEATS or choices > CHOICES:
        problem = (
            f"has {repeats} of * + {{}} and {choices} of | ?; at most {REPEATS} and "
            f"{CHOICES} are allowed"
        )
    if problem:
        raise UserError(f"{KEY}: '{pattern}' {problem}")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise UserError(
            f"{KEY}: '{pattern}' is no regular expression: {error}"
        ) from None


def _check(name: str, expression: re.Pattern[str]) -> None:
    """Raise UserError for a name that no match of the expression can make."""
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
    """A name with what groups have matched. Raises UserError where ``+1`` follows what is
    no number.
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
