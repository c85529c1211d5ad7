"""Simulated secure aggregation: the server learns only the sum of the updates.

Each update is clipped, divided by a step and rounded stochastically to integers, which
are summed modulo a power of two. The simulation has no masks, because they would cancel
in this sum (Bonawitz et al., CCS 2017).
"""

from dataclasses import dataclass
from math import ceil, sqrt
from typing import cast

import torch
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.methods.base import State
from hpcfl.updates.base import Attack, Context
from hpcfl.updates.columns import clip_rows
from hpcfl.updates.memory import MEMORY
from hpcfl.updates.rounding import (
    MOST_BITS,
    centre,
    count_bits,
    round_randomly,
)
from hpcfl.updates.rules.mean import Mean

SECURE = MEMORY + "secure"


@dataclass(frozen=True)
class SecureSum:
    """Rounding of updates to integers, and their sum modulo 2^bits.

    Clients send integers in float64, whose mean over the cohort is exact.

    Server: ``update.secure`` [2], the number of coordinates that wrapped around in the
    last round, and the amount by which rounding may increase the norm of an update.

    Attributes:
        clip: Maximal norm C of an update.
        step: Step γ, the value of the integer 1.
        bits: Bits of an integer.
        clients: Maximal number of clients in a round.
    """

    clip: float
    step: float
    bits: int
    clients: int

    def make_server_state(self) -> State:
        """Return the server's state before round 1."""
        return {SECURE: torch.zeros(2).double()}

    def encode(self, updates: Tensor, context: Context) -> Tensor:
        """Return the updates as the integers that clients send, float64 [n, P]."""
        sent = []
        for row, client in zip(updates, context.ids.tolist(), strict=True):
            clipped = clip_rows(row[None].double(), self.clip)
            drawn = context.random_of("secure sum", client).random((1, len(row)))
            uniforms = torch.from_numpy(drawn).to(row.device)
            sent.append(round_randomly(clipped / self.step, uniforms))
        return torch.cat(sent)

    def count_bits(self, updates: Tensor) -> Tensor:
        """Return the bits of each row, float64 [n]."""
        return torch.full((len(updates),), float(self.bits * updates.shape[1])).double()

    def receive(
        self, server: State, mean: Tensor, clients: int
    ) -> tuple[Tensor, float]:
        """Return the mean update [P] of the cohort, and the amount by which rounding
        may have increased the norm of each update. Store both numbers of ``measure``.

        Args:
            server: The server's state.
            mean: The mean of the clients' integers [P].
            clients: The number of clients in the cohort.
        """
        clients = max(1, clients)
        total = (mean * clients).round().long()
        received = centre(total, self.bits)
        wrapped = int((received != total).sum())
        rounding = self.step * sqrt(len(mean))
        server[SECURE] = torch.tensor([wrapped, rounding]).double()
        return received.double() * self.step / clients, rounding

    def measure(self, server: State) -> tuple[float, float]:
        """Return the number of coordinates that wrapped around in the last round, and
        the amount by which rounding may have increased the norm of an update.
        """
        wrapped, rounding = server[SECURE].tolist()
        return wrapped, rounding

    @property
    def sufficient(self) -> int:
        """Return the least number of bits with which no sum of a round wraps around."""
        return count_sufficient_bits(self.clients, self.clip, self.step)

    def describe(self) -> str:
        """Return a line for ``hpcfl check``."""
        return (
            f"secure sums: integers of {self.bits} bits; {self.sufficient} bits "
            f"suffice for {self.clients} updates with norms up to {self.clip:g} in steps "
            f"of {self.step:g}"
        )

    def list_notes(self) -> list[str]:
        """Return a note if sums may wrap around."""
        if self.bits >= self.sufficient:
            return []
        return [
            f"aggregation.bits = {self.bits}: sums of {self.clients} updates may wrap "
            f"around; {self.sufficient} bits suffice"
        ]


def count_sufficient_bits(clients: int, clip: float, step: float) -> int:
    """Return the least number of bits with which no sum of clipped updates wraps
    around.

    Args:
        clients: The number of updates.
        clip: The maximal norm of an update.
        step: The value of the integer 1.
    """
    return count_bits(clients * ceil(clip / step))


def make_secure_sum(config: Config) -> SecureSum | None:
    """Return the secure sum of an experiment; None without ``aggregation.secure``.

    Raises UserError for sections that need more than an unweighted sum, and for
    integers with too many bits.
    """
    rule, attack = config.aggregation, cast(Attack | None, config.attack)
    if rule is None or not rule.secure:
        return None
    if not isinstance(rule, Mean):
        raise UserError(
            f"aggregation.rule = '{rule.rule}' needs each client's update, but with "
            "aggregation.secure the server only has their sum; take rule = 'mean'"
        )
    if getattr(config.method, "weights", "uniform") != "uniform":
        raise UserError(
            "aggregation.secure = true: the sum has no weights; set method.weights = "
            "'uniform'"
        )
    if attack is not None and attack.needs_honest:
        raise UserError(
            f"attack.kind = '{attack.kind}' needs the honest clients' updates, "
            "which aggregation.secure hides; take another attack"
        )
    assert rule.clip is not None
    participation, clients = config.participation, config.partition.clients
    if participation.scheme == "fixed":
        clients = participation.count(clients)
    sufficient = count_sufficient_bits(clients, rule.clip, rule.step)
    bits = sufficient if rule.bits is None else rule.bits
    if bits > MOST_BITS:
        raise UserError(
            f"aggregation.step = {rule.step}: the integers need {bits} bits, but at most "
            f"{MOST_BITS} are exact; take a larger step or a smaller clip"
        )
    if config.hides_clients and bits < sufficient:
        raise UserError(
            f"aggregation.bits = {bits}: with [privacy] no sum may wrap around; "
            f"{sufficient} bits suffice"
        )
    return SecureSum(clip=rule.clip, step=rule.step, bits=bits, clients=clients)
