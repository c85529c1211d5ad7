"""Whether a replay gives what the function itself gives, looked at now and then, after
ever more replays.
"""

import torch
from torch import Tensor

from hpcfl.errors import RunFailure

ROUNDING = (
    1e-5  # how far a replay may be off, as a fraction of a tensor's largest value
)
AT_ONCE = 8  # lanes that are compared at once, for little memory


def is_due(number: int) -> bool:
    """Whether the replay of this number is compared: powers of four are, ever fewer of
    them.
    """
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; NaN counts as equal to NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def apart(replayed: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """Whether a replay is further from ``plain``, the function's own result, than
    rounding explains: bool [].

    again: a second result of the function, which differs from the first where sums have
    no fixed order.
    """
    lanes = zip(
        *(
            torch.atleast_1d(tensor).split(AT_ONCE)
            for tensor in (replayed, plain, again)
        ),
        strict=True,
    )
    gap, noise, size, odd = torch.stack([_gaps(*three) for three in lanes]).amax(dim=0)
    far: Tensor = (odd > 0) | (gap > 16 * noise + ROUNDING * size)
    return far


def _gaps(replayed: Tensor, plain: Tensor, again: Tensor) -> Tensor:
    """How far results are apart, float64 [4], as ``apart`` judges it.

    The largest differences of a replay from the function's result and of this from a
    second one, the largest number, and whether the replay has other numbers that are
    not finite.
    """
    finite = plain.isfinite() & again.isfinite()
    odd = (replayed.isfinite() != plain.isfinite()).any()
    replayed, plain, again = (
        torch.where(finite, tensor, 0) for tensor in (replayed, plain, again)
    )
    return torch.stack(
        [
            (replayed - plain).abs().amax().double(),
            (plain - again).abs().amax().double(),
            plain.abs().amax().double(),
            odd.double(),
        ]
    )


def refusal(what: str) -> RunFailure:
    """What to raise where a replay of ``what`` gave something else."""
    return RunFailure(
        f"{what} reads a number that changed since its steps were recorded; keep what changes "
        "in the server's or the clients' state and give it as a variable, read as lane.NAME "
        "(runtime.replay = false records nothing, but what only Python keeps is lost when a "
        "run is resumed)"
    )
