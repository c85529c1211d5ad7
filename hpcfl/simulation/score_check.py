"""Trial of scores on synthetic logits before round 1, to find errors in a user's score."""

from collections.abc import Mapping
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.scoring import locate_score_errors, require_rows
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.rows import randomness
from hpcfl.scores.base import Block, Score
from hpcfl.simulation import torch_settings

# Shape of a synthetic block, whose last SPARE samples are masked out.
CLIENTS, SAMPLES, SPARE = 3, 8, 2
ALL = slice(None)


def check_scores(
    scores: Mapping[str, Score], classes: int, device: torch.device
) -> None:
    """Raise UserError for the first invalid score.

    Two scores that record different numbers under one name are invalid, too.

    Args:
        scores: scores by name.
        classes: number of classes.
        device: device of the synthetic block.
    """
    of_clients: dict[str, tuple[str, np.ndarray]] = {}
    recorder: dict[str, str] = {}  # score by name of its summary
    for name, score in scores.items():
        place = f"{user_code.locate(type(score))}score '{name}'"
        with torch_settings.unchanged(place):
            numbers = check(name, score, classes, device)
        for number, values in numbers.items():
            other, others_values = of_clients.setdefault(number, (name, values))
            # Several scores record a client's number of samples.
            if not np.array_equal(values, others_values, equal_nan=True):
                refuse_pair(scores, other, name, f"clients/COLUMN/{number}")
        for number in score.described(name)["recorded"].values():
            other = recorder.setdefault(number, name)
            if other != name:
                refuse_pair(scores, other, name, number)


def refuse_pair(
    scores: Mapping[str, Score], one: str, other: str, number: str
) -> NoReturn:
    """Raise UserError for two scores that record a number under the same name."""
    where = user_code.locate(type(scores[other]), type(scores[one]))
    raise UserError(
        f"{where}scores '{one}' and '{other}' both record '{number}'; give one of them "
        "another name"
    )


def check(
    name: str, score: Score, classes: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Compute sums, numbers and summary of a score for a synthetic block.

    Args:
        name: name of the score.
        score: score.
        classes: number of classes.
        device: device of the block.

    Returns:
        The numbers of the clients by name, [CLIENTS] each.

    Raises:
        UserError: A function of the score fails or returns an invalid result.
    """
    block = make_block(classes, device)
    with locate_score_errors(name, score, "sums"):
        sums = score.sums(block)
        require_rows(sums, CLIENTS, "width")
        check_additive(score, block, sums)
        before = make_block(classes, device)
        require_unchanged(block.logits, before.logits)
        require_unchanged(block.labels, before.labels)
        require_unchanged(block.mask, before.mask)
    of_clients = {}
    with locate_score_errors(name, score, "number"):
        clients = [select_part(block, slice(i, i + 1)) for i in range(CLIENTS)]
        alone = [compute_numbers(name, score, client) for client in clients]
        for number, values in compute_numbers(name, score, block).items():
            require_rows(values, CLIENTS)
            require_name(number)
            require_close(
                torch.cat([numbers[number] for numbers in alone]),
                values,
                "the number of one client depends on other clients; 'sums' and 'number' "
                "must compute each client's row from its own samples",
            )
            of_clients[number] = values.double().numpy()
    with locate_score_errors(name, score, "summary"):
        summary = score.summary(name, of_clients)
        expected = set(score.described(name)["recorded"].values())
        floats = all(isinstance(number, float) for number in summary.values())
        if set(summary) != expected or not floats:
            raise TypeError(
                f"it returns {summary}; expected a float for each of "
                f"{', '.join(sorted(expected))}"
            )
        for number in expected:
            require_name(number)
    return of_clients


def compute_numbers(name: str, score: Score, block: Block) -> dict[str, Tensor]:
    """Return a score's numbers for the clients of a block, by name, ``[clients]`` each.

    Each client has one training sample of every class.

    Args:
        name: name of the score.
        score: score.
        block: block of logits and labels.
    """
    trained = torch.ones(len(block.labels), block.classes, dtype=torch.float64)
    sums = score.sums(block).double().cpu()
    copy = sums.clone()
    numbers = score.numbers(name, sums, trained)
    require_unchanged(sums, copy)
    require_unchanged(trained, torch.ones_like(trained))
    return numbers


def make_block(classes: int, device: torch.device | str = "cpu") -> Block:
    """Make a reproducible block of CLIENTS × SAMPLES logits, some of them correct."""
    generator = randomness.generator(0, "made-up block")
    labels = torch.from_numpy(generator.integers(classes, size=(CLIENTS, SAMPLES)))
    noise = generator.standard_normal((CLIENTS, SAMPLES, classes))
    logits = torch.from_numpy(noise).float()
    logits += 2 * torch.nn.functional.one_hot(labels, classes)
    counts = torch.arange(SAMPLES) < SAMPLES - SPARE
    mask = counts.expand(CLIENTS, -1)
    return Block(logits.to(device), labels.to(device), mask.to(device), classes)


def check_additive(score: Score, block: Block, whole: Tensor) -> None:
    """Check that sums add up and respect the mask.

    Args:
        score: score.
        block: synthetic block.
        whole: sums of the score for the whole block, ``[CLIENTS, width]``.

    Raises:
        TypeError: A check fails.
    """
    first_half = score.sums(select_part(block, samples=slice(2)))
    second_half = score.sums(select_part(block, samples=slice(2, SAMPLES)))
    require_close(
        first_half + second_half,
        whole,
        "the sums of two blocks do not add up to the sums of both blocks together; "
        "'sums' must return sums over samples",
    )
    counted = score.sums(select_part(block, samples=slice(SAMPLES - SPARE)))
    require_close(counted, whole, "the sums depend on samples that block.mask excludes")


def require_close(sums: Tensor, expected: Tensor, complaint: str) -> None:
    """Raise TypeError with the text ``complaint`` unless sums are as expected."""
    close = torch.allclose(
        sums.double(),
        expected.double(),
        rtol=1e-4,
        atol=1e-6,
        equal_nan=True,
    )
    if not close:
        raise TypeError(complaint)


def require_unchanged(given: Tensor, before: Tensor) -> None:
    """Raise TypeError if a score has changed an argument, which others read as well."""
    if not np.array_equal(given.cpu(), before.cpu(), equal_nan=True):
        raise TypeError("it changes an argument in place; change a copy")


def require_name(number: str) -> None:
    """Raise TypeError for a name under which no number can be recorded."""
    if not number or "/" in number:
        raise TypeError(f"the name '{number}' of a number is empty or contains '/'")


def select_part(block: Block, clients: slice = ALL, samples: slice = ALL) -> Block:
    """Return some clients and samples of a block, as a block."""
    logits, labels, mask = (
        tensor[clients, samples] for tensor in (block.logits, block.labels, block.mask)
    )
    return Block(logits, labels, mask, block.classes)
