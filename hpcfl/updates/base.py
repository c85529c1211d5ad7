"""The contracts of what changes clients' updates: transforms, attacks and aggregation
rules.

The update of client i is Δ_i = x_i − a: its upload less the value that it received under
the same name. All entries of a message form one vector of P numbers, in the order of
their names. The specification is ``updates.md``. ``overlay.py`` calls the plug-ins:

    on a client's rank: attack that needs no other client, transforms in order
    on rank 0:          attack that knows the honest updates (and the transforms for
                        what it makes), rule, ``Transform.finish`` in reverse order

A plug-in is one file of ``transforms/``, ``rules/`` or ``attacks/`` with ``plugin =
YourClass`` at its end, found by the file's name, or a user's own class ``my_file:Class``.
The fields of its class are keys of its section. It keeps nothing in itself. Numbers that
last from round to round lie in ``Context.memory``, random numbers come from a
``Context``.
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
    """Exception of a rule that cannot combine the updates of a round: the server keeps
    its state, and the round is counted in ``aggregation/skipped``.
    """


@dataclass(frozen=True)
class Context:
    """Facts about the rows of updates that a plug-in is given.

    Attributes:
        seed: the experiment's.
        round: its number, from 1.
        ids: the clients of the rows [n], ascending.
        clients: the number of all clients M.
        weight: on rank 0 of the rows' clients together, as a share of that of all clients.
        shares: on rank 0 the weights of the rows, as shares of those of the round's clients,
            float64 [n]; None elsewhere.
        layers: the columns of each layer, which cover all P columns in order.
        memory: what the plug-in remembers, by the names of its ``list_memory``: rows
            [n, P] of the clients, or one row [P] of the server. It may assign them.
    """

    seed: int
    round: int
    ids: np.ndarray
    clients: int
    layers: Sequence[slice] = ()
    memory: MutableMapping[str, Tensor] = field(default_factory=dict)
    weight: float = 1.0
    shares: np.ndarray | None = None

    def only(self, clients: np.ndarray) -> "Context":
        """Return the context of some of the rows, bool [n], without a memory."""
        shares = None if self.shares is None else self.shares[clients]
        return replace(self, ids=self.ids[clients], shares=shares, memory={})

    def random(self, purpose: str) -> np.random.Generator:
        """Return a generator that all clients of the round share."""
        return randomness.generator(self.seed, "updates", purpose, self.round)

    def random_of(self, purpose: str, client: int) -> np.random.Generator:
        """Return the generator of one client in this round."""
        key = "updates", purpose, self.round, client
        return randomness.generator(self.seed, *key)


class Transform(TransformSection, ABC):
    """The base class of transforms, which change each client's update by itself."""

    @abstractmethod
    def apply(self, updates: Tensor, context: Context) -> Tensor:
        """Return the transformed updates, [n, P] float32, on the same device.

        A row must not depend on the other rows, and ``updates`` must not change.
        """

    def count_bits(self, updates: Tensor, bits: Tensor) -> Tensor:
        """Return the bits of each row of a transformed message, float64 [n] on the CPU.

        Args:
            updates: The result of ``apply``.
            bits: The bits before the transform, float64 [n].
        """
        return bits

    def has_effect(self, width: int) -> bool:
        """Return whether an update of P = ``width`` numbers can change at all.

        A run of which no part has an effect has the bits of a run without.
        """
        return True

    def list_memory(self) -> tuple[str, ...]:
        """Return the names of rows [P] that each client remembers, zeros at first."""
        return ()

    def list_server_memory(self) -> tuple[str, ...]:
        """Return the names of rows [P] that the server remembers, zeros at first."""
        return ()

    def finish(self, result: Tensor, context: Context) -> Tensor:
        """Return the server's update [P], made of the rule's ``result``; on rank 0.

        ``context.memory`` has the names of ``list_server_memory``.
        """
        return result


class Rule(AggregationSection, ABC):
    """The base class of aggregation rules.

    Attributes:
        needs_rows: whether the rule needs each client's update; otherwise rank 0 has
            the exact mean alone and does not call ``combine``.
        is_weighted: whether it reads ``weights``; other rules need
            ``method.weights = "uniform"``.
        allows_noise: whether the noise of ``[privacy]`` may be added to its result.
    """

    needs_rows: ClassVar[bool] = True
    is_weighted: ClassVar[bool] = False
    allows_noise: ClassVar[bool] = False

    @abstractmethod
    def combine(self, updates: Tensor, weights: Tensor, context: Context) -> Tensor:
        """Return the combined update [P]; on rank 0.

        Raises SkippedRound where the rule cannot combine so few clients.

        Args:
            updates: The clients' updates, [n, P] float32 on the CPU, in the order of
                ``context.ids``. They may not be finite, and must not change.
            weights: The weights of the clients, whole numbers, float64 [n].
        """

    def describe(self, clients: int) -> str:
        """Return what the rule does with the updates of so many clients, for ``check``:
        a clause whose subject is the rule.
        """
        return "is a rule of your own"

    def has_effect(self) -> bool:
        """Return whether the rule is another one than the exact mean of what clients
        made.
        """
        return self.needs_rows

    def bound_updates(self, updates: Tensor) -> Tensor:
        """Return the updates [n, P] as the rule lets clients send them, after all
        transforms. A row must not depend on the other rows.
        """
        return updates

    def count_bytes(self, clients: int, width: int) -> int:
        """Return the bytes of copies of rows that ``combine`` makes of so many updates of
        P = ``width`` numbers, for the memory table of ``hpcfl check``.
        """
        return 0

    def find_problem(self, clients: int) -> str:
        """Return why the rule cannot combine ``clients`` updates, "" if it can.

        It is checked before round 1 where cohorts have a fixed size.
        """
        return ""

    def list_memory(self) -> tuple[str, ...]:
        """Return the names of rows [P] that the server remembers, zeros at first."""
        return ()


class Attack(AttackSection, ABC):
    """The base class of attacks.

    Attributes:
        needs_honest: whether the attackers know the updates of the honest clients of the
            round, as they are sent.
        changes_updates: whether ``forge`` is called. An attack on data alone works with
            every method.
    """

    needs_honest: ClassVar[bool] = False

    @model_validator(mode="after")
    def _has_attackers(self) -> Self:
        if (self.share is None) == (self.clients is None):
            raise ValueError("give either share or clients, the clients that attack")
        return self

    def find_attackers(self, seed: int, clients: int) -> np.ndarray:
        """Return the ids of the attackers among so many clients, ascending.

        Raises UserError for clients that do not exist, for a share of less than half a
        client, and where no client is honest.
        """
        if self.clients is not None:
            found = np.unique(np.array(self.clients, np.int64))
            if len(found) and found[-1] >= clients:
                raise UserError(
                    f"attack.clients = {self.clients}: must be clients from 0 to "
                    f"{clients - 1}"
                )
        else:
            assert self.share is not None
            count = int(self.share * clients + 0.5)
            if self.share and not count:
                raise UserError(
                    f"attack.share = {self.share:g}: none of {clients} clients attacks; "
                    f"take at least {0.5 / clients:g}, or 0"
                )
            order = randomness.permutation(clients, seed, "attackers")
            found = np.sort(order[:count])
        if len(found) == clients:
            raise UserError(
                f"attack: all {clients} clients attack, so that none has honest numbers; "
                "take fewer"
            )
        return found

    def poison(self, attackers: np.ndarray, facts: "AttackFacts") -> "Poison | None":
        """Return the change of the attackers' training samples, or None.

        Raises UserError where the data cannot be changed so.

        Args:
            attackers: Their ids, ascending.
            facts: Of the data set.
        """
        return None

    def find_problem(self, attackers: int, honest: int) -> str:
        """Return why so many attackers cannot forge updates in a round with so many
        honest clients, "" if they can.

        It is checked before round 1 where all clients take part in every round. An
        attack that knows the honest updates forges none in another round with a problem:
        its attackers send their own.
        """
        return ""

    def describe(self, attackers: int, honest: int) -> str:
        """Return the numbers of the attack in a round of all clients, for ``check``; ""
        for none.
        """
        return ""

    @abstractmethod
    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        """Return what the attackers send in place of their own ``updates``, [m, P].

        Args:
            updates: The attackers' own updates, which must not change.
            honest: The updates of the honest clients of the round [h, P], h ≥ 1, if
                ``needs_honest``; else None.
            context: With the attackers' ids.
        """
