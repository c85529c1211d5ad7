"""Base classes of plug-ins for the clients' updates: transforms, attacks and
aggregation rules.

The update of client i is Δ_i = x_i − a, its upload minus the value that it received
under the same name. All entries of a message form one vector of P numbers, in the order
of their names. The specification is ``updates.md``. ``overlay.py`` calls the plug-ins
in this order:

    on a client's rank: attacks without knowledge of other clients, transforms
    on rank 0:          attacks with knowledge of the honest updates (their updates then
                        pass through the transforms), the rule, ``Transform.finish`` in
                        reverse order

A plug-in is a file in ``transforms/``, ``rules/`` or ``attacks/`` that ends with
``plugin = YourClass`` and gives the plug-in its name, or a user's ``my_file:Class``.
The fields of the class are keys of its section. An instance does not change: state from
earlier rounds is in ``Context.memory``, and random numbers come from the ``Context``.
"""

from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from pydantic import model_validator
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.experiment.sections import (
    AggregationSection,
    AttackSection,
    TransformSection,
)
from hpcfl.rows import randomness

if TYPE_CHECKING:
    from hpcfl.data.poison import AttackFacts, Poison


class SkippedRound(Exception):
    """Raised by a rule that cannot combine the updates of a round. The server then
    keeps its state, and the round counts in ``aggregation/skipped``.
    """


@dataclass(frozen=True)
class Context:
    """Facts about the rows of updates that a plug-in receives.

    Attributes:
        seed: Seed of the experiment.
        round: Number of the round, from 1.
        ids: Clients of the rows [n], ascending.
        clients: Total number of clients M.
        layers: Columns of each layer, which cover all P columns in order.
        memory: The plug-in's state, by the names of its ``list_memory``: rows [n, P] of
            the clients, or one row [P] of the server. The plug-in may assign them.
        weight: On rank 0, total weight of the rows' clients as a share of the weight of
            all clients.
        shares: On rank 0, weights of the rows as shares of the cohort's total weight,
            float64 [n]; None on other ranks.
    """

    seed: int
    round: int
    ids: np.ndarray
    clients: int
    layers: Sequence[slice] = ()
    memory: MutableMapping[str, Tensor] = field(default_factory=dict)
    weight: float = 1.0
    shares: np.ndarray | None = None

    def select(self, clients: np.ndarray) -> "Context":
        """Return the context of the rows selected by a mask bool [n], without memory."""
        shares = None if self.shares is None else self.shares[clients]
        return replace(self, ids=self.ids[clients], shares=shares, memory={})

    def random(self, purpose: str) -> np.random.Generator:
        """Return a generator for a purpose, the same for all clients of the round."""
        return randomness.generator(self.seed, "updates", purpose, self.round)

    def random_of(self, purpose: str, client: int) -> np.random.Generator:
        """Return a generator for a purpose and one client in this round."""
        key = "updates", purpose, self.round, client
        return randomness.generator(self.seed, *key)


class Transform(TransformSection, ABC):
    """Base class of transforms, which change each client's update independently."""

    @abstractmethod
    def apply(self, updates: Tensor, context: Context) -> Tensor:
        """Return the transformed updates, [n, P] float32, on the same device.

        A row must not depend on the other rows, and ``updates`` must not change.
        """

    def apply_to_forged(self, updates: Tensor, context: Context) -> Tensor:
        """Return the updates [m, P] that attackers can send, for updates that rank 0
        computed from transformed ones.
        """
        return self.apply(updates, context)

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        """Return the bits of each transformed row, float64 [n] on the CPU.

        Args:
            updates: The result of ``apply``.
            bits: The bits before the transform, float64 [n].
        """
        return bits

    def has_effect(self, width: int) -> bool:
        """Return whether the transform can change an update of P = ``width`` numbers.

        A run in which no part has an effect equals a run without these parts, to the
        last bit.
        """
        return True

    def list_memory(self) -> tuple[str, ...]:
        """Return the names of rows [P] in each client's state, initially zero."""
        return ()

    def list_server_memory(self) -> tuple[str, ...]:
        """Return the names of rows [P] in the server's state, initially zero."""
        return ()

    def finish(self, result: Tensor, context: Context) -> Tensor:
        """Return the server's update [P] from the rule's ``result`` [P]. Runs on rank
        0.

        ``context.memory`` has the names of ``list_server_memory``.
        """
        return result


class Rule(AggregationSection, ABC):
    """Base class of aggregation rules.

    Attributes:
        needs_rows: Whether the rule needs each client's update; otherwise rank 0
            receives only the exact mean and does not call ``combine``.
        is_weighted: Whether the rule reads ``weights``; other rules need
            ``method.weights = "uniform"``.
        allows_noise: Whether the noise of ``[privacy]`` may be added to the result.
    """

    needs_rows: ClassVar[bool] = True
    is_weighted: ClassVar[bool] = False
    allows_noise: ClassVar[bool] = False

    @abstractmethod
    def combine(self, updates: Tensor, weights: Tensor, context: Context) -> Tensor:
        """Return the combined update [P]. Runs on rank 0.

        Args:
            updates: The clients' updates, [n, P] float32 on the CPU, in the order of
                ``context.ids``. They may contain NaN or Inf, and must not change.
            weights: The weights of the clients, integers as float64 [n].
            context: Facts about the rows.

        Raises:
            SkippedRound: The rule cannot combine so few clients.
        """

    def describe(self, clients: int) -> str:
        """Return a description for ``hpcfl check``: a predicate whose subject is the
        rule, such as "takes the mean of 5 updates" for ``clients`` = 5.
        """
        return "is a rule of your own"

    def has_effect(self) -> bool:
        """Return whether the result may differ from the exact mean of the updates."""
        return self.needs_rows

    def bound_updates(self, updates: Tensor) -> Tensor:
        """Return the updates [n, P] with the rule's bound applied, on a client's rank
        after all transforms. A row must not depend on the other rows.
        """
        return updates

    def count_bytes(self, clients: int, width: int) -> int:
        """Return the bytes of the copies that ``combine`` makes, for the memory table
        of ``hpcfl check``.

        Args:
            clients: Number of updates.
            width: Numbers P in an update.
        """
        return 0

    def find_problem(self, clients: int) -> str:
        """Return the reason why the rule cannot combine ``clients`` updates, "" if it
        can.

        The largest possible cohort of a run is checked before round 1.
        """
        return ""

    def list_notes(self, clients: int) -> list[str]:
        """Return notes for the user before round 1 on rounds with ``clients`` clients."""
        return []

    def list_memory(self) -> tuple[str, ...]:
        """Return the names of rows [P] in the server's state, initially zero."""
        return ()


class Attack(AttackSection, ABC):
    """Base class of attacks.

    Attributes:
        needs_honest: Whether the attackers know the updates that the round's honest
            clients send.
        changes_updates: Whether ``forge`` is called. An attack that only changes data
            works with every method.
        is_absolute: Whether its numbers are for samples with values from 0 to 1.
    """

    needs_honest: ClassVar[bool] = False
    is_absolute: ClassVar[bool] = False

    @model_validator(mode="after")
    def _has_attackers(self) -> Self:
        if (self.share is None) == (self.clients is None):
            raise ValueError("set either share or clients to define the attackers")
        return self

    def find_attackers(self, seed: int, clients: int) -> np.ndarray:
        """Return the ids of the attackers, ascending.

        Args:
            seed: Seed of the experiment.
            clients: Total number of clients.

        Raises:
            UserError: An id does not exist, the share is below half a client, or no
                client is honest.
        """
        if self.clients is not None:
            found = np.unique(np.array(self.clients, np.int64))
            if len(found) and found[-1] >= clients:
                raise UserError(
                    f"attack.clients = {self.clients}: must be numbers from 0 to "
                    f"{clients - 1}"
                )
        else:
            assert self.share is not None
            count = int(self.share * clients + 0.5)
            if self.share and not count:
                raise UserError(
                    f"attack.share = {self.share:g}: is less than half of one of the "
                    f"{clients} clients; take at least {0.5 / clients:g}, or 0"
                )
            order = randomness.permutation(clients, seed, "attackers")
            found = np.sort(order[:count])
        if len(found) == clients:
            raise UserError(
                f"attack: all {clients} clients attack, and none is left to score; reduce "
                "attack.share or attack.clients"
            )
        return found

    def poison(self, attackers: np.ndarray, facts: "AttackFacts") -> "Poison | None":
        """Return the change of the attackers' training samples, or None.

        Args:
            attackers: Ids of the attackers, ascending.
            facts: Facts about the data set.

        Raises:
            UserError: The attack cannot change this data set.
        """
        return None

    def find_problem(self, attackers: int, honest: int) -> str:
        """Return the reason why the attackers cannot forge updates in a round, "" if
        they can.

        Runs with full participation are checked before round 1. In other runs,
        attackers that need the honest updates send their own in rounds with a problem.

        Args:
            attackers: Number of attackers in the round.
            honest: Number of honest clients in the round.
        """
        return ""

    def describe(self, attackers: int, honest: int) -> str:
        """Return the derived parameters of the attack for ``hpcfl check``, or "".

        Args:
            attackers: Number of attackers among all clients.
            honest: Number of honest clients.
        """
        return ""

    @abstractmethod
    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        """Return the updates [m, P] that the attackers send instead of their own.

        Args:
            updates: The attackers' own updates [m, P], which must not change.
            honest: The updates of the round's honest clients [h, P], h ≥ 1, if
                ``needs_honest``; else None.
            context: Facts about the attackers' rows.
        """
