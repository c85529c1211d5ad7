"""The scores, tried on made-up logits before round 1: what a user's own cannot do, or adds up wrongly."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hpcfl.experiment import blame
from hpcfl.scores.base import Block, Score

CLIENTS, SAMPLES, SPARE = 3, 8, 2  # the last samples fill up and must not count
Found = tuple[str, BaseException]  # a line, and the exception behind it


class Mistake(Exception):
    """A score failed in one of its functions, by name, because of the ``__cause__``."""


def mistake(scores: Mapping[str, Score], classes: int, device: torch.device) -> Found | None:
    """What is wrong with the first score that cannot be computed; None if nothing is."""
    for name, score in scores.items():
        try:
            check(name, score, classes, device)
        except Mistake as failed:
            error = failed.__cause__
            assert error is not None
            place = blame.line_of(error) or blame.definition_of(type(score))
            return placed(f"score '{name}' fails in '{failed}': {blame.said(error)}", place), error
    return clash(scores)


def clash(scores: Mapping[str, Score]) -> Found | None:
    """Two scores that record a number under the same name."""
    recorded: dict[str, str] = {}
    for name, score in scores.items():
        for number in score.described(name)["recorded"].values():
            if (other := recorded.setdefault(number, name)) != name:
                place = blame.definition_of(type(score)) or blame.definition_of(type(scores[other]))
                error = ValueError(f"scores '{other}' and '{name}' both record '{number}'")
                return placed(str(error), place), error
    return None


def placed(text: str, place: str | None) -> str:
    return f"{place}: {text}" if place else text


def check(name: str, score: Score, classes: int, device: torch.device) -> None:
    """Sums of a few clients, their numbers and their summary. Raises Mistake."""
    block = made_up(classes, device)
    with function("sums"):
        check_additive(score, block, checked_sums(score.sums(block)))
    with function("number"):
        of_clients = {part: checked_numbers(values) for part, values in numbers(name, score, block).items()}
    with function("summary"):
        found = score.summary(name, of_clients)
        expected = set(score.described(name)["recorded"].values())
        if set(found) != expected or not all(isinstance(number, float) for number in found.values()):
            raise TypeError(f"it returns {found}; expected a float for each of {', '.join(sorted(expected))}")


def numbers(name: str, score: Score, block: Block) -> dict[str, Tensor]:
    """What is recorded of each client of a block, as if each had one training sample of every class."""
    trained = torch.ones(len(block.labels), block.classes, dtype=torch.float64)
    return score.numbers(name, score.sums(block).double().cpu(), trained)


def made_up(classes: int, device: torch.device | str = "cpu") -> Block:
    """Logits of a few clients' models that are partly right, the same in every trial."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (CLIENTS, SAMPLES), generator=generator)
    logits = torch.randn(CLIENTS, SAMPLES, classes, generator=generator)
    logits += 2 * torch.nn.functional.one_hot(labels, classes)
    mask = (torch.arange(SAMPLES) < SAMPLES - SPARE).expand(CLIENTS, -1)
    return Block(logits.to(device), labels.to(device), mask.to(device), classes)


def check_additive(score: Score, block: Block, whole: Tensor) -> None:
    """Raises TypeError unless sums add up over blocks, leave out what the mask does, and are
    each client's own."""
    counted = part(block, slice(None), slice(SAMPLES - SPARE))
    halves = [score.sums(part(block, slice(None), half)) for half in (slice(2), slice(2, SAMPLES))]
    one = score.sums(part(block, slice(1), slice(None)))
    for found, expected, meaning in (
            (sum(halves), whole, "those of two blocks do not add up to those of both in one; "
                                 "they must be sums over samples"),
            (score.sums(counted), whole, "they change with samples that block.mask leaves out"),
            (one, whole[:1], "those of one client depend on the clients beside it")):
        given, wanted = torch.as_tensor(found).double(), expected.double()
        if not torch.allclose(given, wanted, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise TypeError(meaning)


def part(block: Block, clients: slice, samples: slice) -> Block:
    """Some clients and samples of a block, as a block."""
    logits, labels, mask = (tensor[clients, samples] for tensor in (block.logits, block.labels, block.mask))
    return Block(logits, labels, mask, block.classes)


def checked_sums(sums: Tensor) -> Tensor:
    if not isinstance(sums, Tensor) or sums.dim() != 2 or len(sums) != CLIENTS:
        raise TypeError(f"it returns {shown(sums)} for {CLIENTS} clients; expected [{CLIENTS}, width]")
    return sums


def checked_numbers(values: Tensor) -> np.ndarray:
    if not isinstance(values, Tensor) or values.shape != (CLIENTS,):
        raise TypeError(f"it returns {shown(values)} for {CLIENTS} clients; expected [{CLIENTS}]")
    return values.double().numpy()


def shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"


@contextmanager
def function(name: str) -> Iterator[None]:
    """What fails inside fails in this function of the score."""
    try:
        yield
    except Exception as error:
        raise Mistake(name) from error
