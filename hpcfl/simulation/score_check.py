"""The scores tried on made-up logits before round 1, so that mistakes in a user's own
score show early.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.rows import randomness
from hpcfl.scores.base import Block, Score

# of a made-up block; the last SPARE samples must not count
CLIENTS, SAMPLES, SPARE = 3, 8, 2


@contextmanager
def locate_score_errors(name: str, score: Score, function: str) -> Iterator[None]:
    """Raise an error inside the block as a UserError of a score's function, with its
    place in the user's code.
    """
    try:
        yield
    except Exception as error:
        where = user_code.locate(type(score), error)
        raise UserError(
            f"{where}score '{name}' fails in '{function}': "
            f"{user_code.describe_error(error)}"
        ) from error


def check_scores(
    scores: Mapping[str, Score], classes: int, device: torch.device
) -> None:
    """Raise UserError for the first score that fails, and for two scores that record
    different numbers under the same name.
    """
    of_clients: dict[str, tuple[str, np.ndarray]] = {}
    for name, score in scores.items():
        for number, values in check(name, score, classes, device).items():
            other, others_values = of_clients.setdefault(number, (name, values))
            # Several scores record how many samples a client has.
            if not np.array_equal(values, others_values, equal_nan=True):
                refuse_pair(scores, other, name, f"clients/COLUMN/{number}")
    recorder: dict[str, str] = {}  # name of a summary → score
    for name, score in scores.items():
        for number in score.described(name)["recorded"].values():
            other = recorder.setdefault(number, name)
            if other != name:
                refuse_pair(scores, other, name, number)


def refuse_pair(
    scores: Mapping[str, Score], one: str, other: str, number: str
) -> NoReturn:
    """Raise UserError for two scores that record a number under the same name."""
    where = user_code.locate(type(scores[other]))
    where = where or user_code.locate(type(scores[one]))
    raise UserError(
        f"{where}scores '{one}' and '{other}' both record '{number}'; give one of them "
        "another name"
    )


def check(
    name: str, score: Score, classes: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Compute sums, numbers and summary of a made-up block. Raises UserError if one
    fails or is malformed.

    Returns:
        The numbers of the clients by name, [CLIENTS] each.
    """
    block = make_block(classes, device)
    with locate_score_errors(name, score, "sums"):
        check_additive(score, block, checked(score.sums(block), "width"))
    of_clients = {}
    with locate_score_errors(name, score, "number"):
        for number, values in compute_numbers(name, score, block).items():
            of_clients[number] = checked(values).double().numpy()
    with locate_score_errors(name, score, "summary"):
        summary = score.summary(name, of_clients)
        expected = set(score.described(name)["recorded"].values())
        floats = all(isinstance(number, float) for number in summary.values())
        if set(summary) != expected or not floats:
            raise TypeError(
                f"it returns {summary}; expected a float for each of "
                f"{', '.join(sorted(expected))}"
            )
    return of_clients


def compute_numbers(name: str, score: Score, block: Block) -> dict[str, Tensor]:
    """Return the numbers that a score records for the clients of a block, by name,
    ``[clients]`` each.

    Each client counts as one that has trained with one sample of every class.
    """
    trained = torch.ones(len(block.labels), block.classes, dtype=torch.float64)
    return score.numbers(name, score.sums(block).double().cpu(), trained)


def make_block(classes: int, device: torch.device | str = "cpu") -> Block:
    """Make a reproducible block of CLIENTS × SAMPLES random logits that are partly
    right.
    """
    generator = randomness.generator(0, "made-up block")
    labels = torch.from_numpy(generator.integers(classes, size=(CLIENTS, SAMPLES)))
    noise = generator.standard_normal((CLIENTS, SAMPLES, classes))
    logits = torch.from_numpy(noise).float()
    logits += 2 * torch.nn.functional.one_hot(labels, classes)
    counts = torch.arange(SAMPLES) < SAMPLES - SPARE
    mask = counts.expand(CLIENTS, -1)
    return Block(logits.to(device), labels.to(device), mask.to(device), classes)


def check_additive(score: Score, block: Block, whole: Tensor) -> None:
    """Raise TypeError unless sums add up over blocks, heed the mask, and are each
    client's own.

    whole: the score's sums of the whole block, ``[CLIENTS, width]``.
    """
    everyone, all_samples = slice(None), slice(None)
    first_half = score.sums(select_part(block, everyone, slice(2)))
    second_half = score.sums(select_part(block, everyone, slice(2, SAMPLES)))
    require_close(
        first_half + second_half,
        whole,
        "those of two blocks do not add up to those of both in one; "
        "they must be sums over samples",
    )
    counted = score.sums(select_part(block, everyone, slice(SAMPLES - SPARE)))
    require_close(counted, whole, "they change with samples that block.mask leaves out")
    first_client = score.sums(select_part(block, slice(1), all_samples))
    require_close(
        first_client, whole[:1], "those of one client depend on the clients beside it"
    )


def require_close(sums: Tensor, expected: Tensor, complaint: str) -> None:
    """Raise TypeError with a complaint unless sums are as expected."""
    close = torch.allclose(
        sums.double(),
        expected.double(),
        rtol=1e-4,
        atol=1e-6,
        equal_nan=True,
    )
    if not close:
        raise TypeError(complaint)


def select_part(block: Block, clients: slice, samples: slice) -> Block:
    """Return some clients and samples of a block, as a block."""
    logits, labels, mask = (
        tensor[clients, samples] for tensor in (block.logits, block.labels, block.mask)
    )
    return Block(logits, labels, mask, block.classes)


def checked(value: Tensor, *widths: str) -> Tensor:
    """Return the result of a score's function. Raises TypeError for other than a row or a
    number for each client.

    widths: the names of the dimensions after the clients.
    """
    right = isinstance(value, Tensor) and value.dim() == 1 + len(widths)
    if not right or len(value) != CLIENTS:
        expected = ", ".join([str(CLIENTS), *widths])
        raise TypeError(
            f"it returns {describe_value(value)} for {CLIENTS} clients; expected "
            f"[{expected}]"
        )
    return value


def describe_value(value: object) -> str:
    """Return a tensor's shape, or another object's type, for a message."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"
