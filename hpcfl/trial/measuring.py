"""The scores tried on made-up logits before round 1, so that mistakes in a user's own
score show early.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hpcfl.experiment import blame
from hpcfl.rows import randomness
from hpcfl.scores.base import Block, Score
from hpcfl.trial.failure import Diagnosis, Failure, placed, trying

CLIENTS, SAMPLES, SPARE = (
    3,
    8,
    2,
)  # of a made-up block; the last SPARE samples must not count


def diagnose(
    scores: Mapping[str, Score], classes: int, device: torch.device
) -> Diagnosis | None:
    """What is wrong with the first score that fails, or with names that clash; None if
    nothing is.
    """
    for name, score in scores.items():
        try:
            check(name, score, classes, device)
        except Failure as failure:
            error = failure.__cause__
            assert error is not None
            place = blame.line_of(error) or blame.definition_of(type(score))
            return placed(
                f"score '{name}' fails in '{failure}': {blame.said(error)}", place
            ), error
    return clash(scores)


def clash(scores: Mapping[str, Score]) -> Diagnosis | None:
    """Which two scores record a number under the same name; None if no two do."""
    recorder: dict[str, str] = {}  # name of a recorded number → score
    for name, score in scores.items():
        for number in score.described(name)["recorded"].values():
            if (other := recorder.setdefault(number, name)) != name:
                place = blame.definition_of(type(score)) or blame.definition_of(
                    type(scores[other])
                )
                error = ValueError(
                    f"scores '{other}' and '{name}' both record '{number}'"
                )
                return placed(str(error), place), error
    return None


def check(name: str, score: Score, classes: int, device: torch.device) -> None:
    """Compute sums, numbers and summary of a made-up block. Raises Failure if one fails
    or is malformed.
    """
    block = made_up(classes, device)
    with trying("sums"):
        check_additive(score, block, checked_sums(score.sums(block)))
    with trying("number"):
        of_clients = {
            part: checked_numbers(values)
            for part, values in numbers(name, score, block).items()
        }
    with trying("summary"):
        summary = score.summary(name, of_clients)
        expected = set(score.described(name)["recorded"].values())
        if set(summary) != expected or not all(
            isinstance(number, float) for number in summary.values()
        ):
            raise TypeError(
                f"it returns {summary}; expected a float for each of "
                f"{', '.join(sorted(expected))}"
            )


def numbers(name: str, score: Score, block: Block) -> dict[str, Tensor]:
    """What a score records of the clients of a block, by name, ``[clients]`` each.

    Each client counts as one that has trained with one sample of every class.
    """
    trained = torch.ones(len(block.labels), block.classes, dtype=torch.float64)
    return score.numbers(name, score.sums(block).double().cpu(), trained)


def made_up(classes: int, device: torch.device | str = "cpu") -> Block:
    """A block of CLIENTS × SAMPLES random logits that are partly right, the same in
    every trial.
    """
    generator = randomness.generator(0, "made-up block")
    labels = torch.from_numpy(generator.integers(classes, size=(CLIENTS, SAMPLES)))
    logits = torch.from_numpy(
        generator.standard_normal((CLIENTS, SAMPLES, classes))
    ).float()
    logits += 2 * torch.nn.functional.one_hot(labels, classes)
    mask = (torch.arange(SAMPLES) < SAMPLES - SPARE).expand(CLIENTS, -1)
    return Block(logits.to(device), labels.to(device), mask.to(device), classes)


def check_additive(score: Score, block: Block, whole: Tensor) -> None:
    """Raise TypeError unless sums add up over blocks, heed the mask, and are each
    client's own.

    whole: the score's sums of the whole block, ``[CLIENTS, width]``.
    """
    counted = part(block, slice(None), slice(SAMPLES - SPARE))
    halves = [
        score.sums(part(block, slice(None), half))
        for half in (slice(2), slice(2, SAMPLES))
    ]
    first_client = score.sums(part(block, slice(1), slice(None)))
    for computed, expected, complaint in (
        (
            sum(halves),
            whole,
            "those of two blocks do not add up to those of both in one; "
            "they must be sums over samples",
        ),
        (
            score.sums(counted),
            whole,
            "they change with samples that block.mask leaves out",
        ),
        (
            first_client,
            whole[:1],
            "those of one client depend on the clients beside it",
        ),
    ):
        if not torch.allclose(
            torch.as_tensor(computed).double(),
            expected.double(),
            rtol=1e-4,
            atol=1e-6,
            equal_nan=True,
        ):
            raise TypeError(complaint)


def part(block: Block, clients: slice, samples: slice) -> Block:
    """Some clients and samples of a block, as a block."""
    logits, labels, mask = (
        tensor[clients, samples] for tensor in (block.logits, block.labels, block.mask)
    )
    return Block(logits, labels, mask, block.classes)


def checked_sums(sums: Tensor) -> Tensor:
    """What ``Score.sums`` returned. Raises TypeError if it is not a row for each
    client.
    """
    if not isinstance(sums, Tensor) or sums.dim() != 2 or len(sums) != CLIENTS:
        raise TypeError(
            f"it returns {shown(sums)} for {CLIENTS} clients; expected [{CLIENTS}, width]"
        )
    return sums


def checked_numbers(values: Tensor) -> np.ndarray:
    """What ``Score.numbers`` has under a name. Raises TypeError if it is not a number
    for each client.
    """
    if not isinstance(values, Tensor) or values.shape != (CLIENTS,):
        raise TypeError(
            f"it returns {shown(values)} for {CLIENTS} clients; expected [{CLIENTS}]"
        )
    return values.double().numpy()


def shown(value: object) -> str:
    """A tensor's shape, anything else's type, for a message."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"
