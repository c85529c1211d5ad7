"""Simulated secure aggregation: the server learns the sum of the updates alone.

Each update is clipped, divided by a step, rounded at random to whole numbers and added
up modulo a power of two. The masks of real clients cancel in this sum (Bonawitz et al.,
CCS 2017), so that the simulation needs none.
"""

from math import ceil
from typing import cast

import torch
from pydantic import Field
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.rows import mixing
from hpcfl.updates.base import Attack, Context, Transform
from hpcfl.updates.rounding import (
    MOST_BITS,
    centre,
    count_bits,
    round_randomly,
)
from hpcfl.updates.rules.mean import Mean

WRAPPED = "wrapped"


class SecureSum(Transform):
    """The last transform of a run with ``aggregation.secure``.

    Clients send whole numbers in float64, whose mean over the cohort is exact.
    """

    clip: float = Field(gt=0)
    step: float = Field(gt=0)
    bits: int = Field(ge=2, le=MOST_BITS)

    def apply(self, updates: Tensor, context: Context) -> Tensor:
        sent = []
        for row, client in zip(updates, context.ids.tolist(), strict=True):
            exact = row[None].double()
            norm = mixing.row_sums(exact.square()).sqrt()
            clipped = exact * (self.clip / norm.clamp(min=self.clip))
            drawn = context.random_of("secure sum", client).random((1, len(row)))
            uniforms = torch.from_numpy(drawn).to(row.device)
            sent.append(round_randomly(clipped / self.step, uniforms))
        return torch.cat(sent)

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        return torch.full_like(bits, self.bits * updates.shape[1])

    def list_numbers(self) -> tuple[str, ...]:
        return (WRAPPED,)

    def finish(self, result: Tensor, context: Context) -> Tensor:
        clients = len(context.ids)
        total = (result * clients).round().long()
        received = centre(total, self.bits)
        context.numbers[WRAPPED] = float((received != total).sum())
        return received.double() * self.step / clients


def count_sufficient_bits(clients: int, clip: float, step: float) -> int:
    """Return the fewest bits with which no sum of so many clipped updates wraps around."""
    return count_bits(clients * ceil(clip / step))


def make_secure_sum(config: Config) -> SecureSum:
    """Return the transform of an experiment with ``aggregation.secure``.

    Raises UserError for sections that need more than a sum without weights, and for
    whole numbers of too many bits.
    """
    rule, attack = config.aggregation, cast(Attack | None, config.attack)
    if not isinstance(rule, Mean):
        assert rule is not None
        raise UserError(
            f"aggregation.rule = '{rule.rule}' needs each client's update, and with "
            "aggregation.secure the server has their sum alone; take rule = 'mean'"
        )
    if getattr(config.method, "weights", "uniform") != "uniform":
        raise UserError(
            "aggregation.secure = true: the sum has no weights; set method.weights = "
            "'uniform'"
        )
    if attack is not None and attack.needs_honest:
        raise UserError(
            f"attack.kind = '{attack.kind}' is made of the other clients' updates, "
            "which aggregation.secure hides; take another attack"
        )
    assert rule.clip is not None
    clients = config.participation.count(config.partition.clients)
    sufficient = count_sufficient_bits(clients, rule.clip, rule.step)
    bits = sufficient if rule.bits is None else rule.bits
    if bits > MOST_BITS:
        raise UserError(
            f"aggregation.step = {rule.step}: the whole numbers have {bits} bits, and at "
            f"most {MOST_BITS} are exact; take a larger step or a smaller clip"
        )
    return SecureSum(kind="secure-sum", clip=rule.clip, step=rule.step, bits=bits)
