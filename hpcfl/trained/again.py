"""A round that was played, looked at again: from the state before it, with every model
kept that it scores.

What a client's model is, only its method says, and it says so where it scores. So
nothing is asked of a
method for this: the round's own hooks run once more, for the clients that are wanted,
    and do what they did in the run, to the last bit where processor, GPU and libraries
    are the same.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl import trial
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment.config import fingerprint
from hpcfl.files.atomic import Damaged
from hpcfl.fleet import Fleet
from hpcfl.fleet.losses import Predict, Tensors
from hpcfl.methods.base import State
from hpcfl.preparation.prepare import Prepared, prepare, refuse_other_frozen
from hpcfl.rounds.federation import Federation
from hpcfl.storage import checkpoint
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.clients import ClientStore
from hpcfl.storage.manifest import Manifest
from hpcfl.storage.run_folder import CHECKPOINTS
from hpcfl.trained import experiment

# clients that are looked at at once, so that not all models of a run are in memory
TOGETHER = 64

# Decorates what a user may call inside ``torch.no_grad`` or ``torch.inference_mode``, as
# one does around predictions: a round that is played again trains, and what is kept for
# the next call must not be of the kind that no gradient can go through.
with_gradients = torch.inference_mode(False)  # which ends ``torch.no_grad`` too


@dataclass(frozen=True)
class Kept:
    """A column's models, as ``fleet.score`` was given them, of n clients.

    rows: [n, P], or [P] if it is the same for all. buffers: [n, B]. predict, variables:
    as for ``fleet.score``.
    """

    rows: Tensor
    buffers: Tensor
    predict: Predict | None
    variables: Tensors


@dataclass
class Keeper(Fleet):
    """A fleet that keeps, by column, the models that are scored; what they score is
    recorded already.
    """

    kept: dict[str, Kept] = field(default_factory=dict)

    def score(
        self,
        column: str | Sequence[str],
        rows: Tensor,
        predict: Predict | None = None,
        model: str = "model",
        variables: Tensors | None = None,
    ) -> None:
        columns = [column] if isinstance(column, str) else column
        of_clients = {
            name: tensor.clone() for name, tensor in (variables or {}).items()
        }
        kept = Kept(rows.clone(), self.buffers(model).clone(), predict, of_clients)
        self.kept |= dict.fromkeys(columns, kept)


class Again:
    """The rounds of the run in a folder, as far as the state before them is kept."""

    def __init__(
        self, folder: Path, table: Mapping[str, Any], own: Collection[str]
    ) -> None:
        """Nothing is read yet; arguments as for ``experiment.again``."""
        self.folder, self.checkpoints = folder, folder / CHECKPOINTS
        self.run = fingerprint(table)
        self._table, self._own = table, own
        self._states: dict[
            int, tuple[Manifest | None, State]
        ] = {}  # by round: that before it, on the server

    @cached_property
    @with_gradients
    def prepared(self) -> Prepared:
        """What a single process with all clients has before round 1. Raises UserError.

        It is tried as it was before the run, which had one lane if it cannot be
        batched.
        """
        alone = OneProcess()
        again = experiment.again(self.folder, self._table, self._own)
        prepared = trial.run(prepare(again, alone), alone)
        newest = checkpoint.latest(self.checkpoints)
        if newest is not None:
            refuse_other_frozen(prepared, newest.meta, self.folder)
        return prepared

    @property
    def rounds(self) -> set[int]:
        """The numbers of the rounds before which the state is kept; the last may be yet
        to come.
        """
        return {
            1,
            *(done + 1 for done in checkpoint.states(self.checkpoints, self.run)),
        }

    def digest(self, round: int) -> str | None:
        """The digest of the whole state before a round; None before the first. Raises
        UserError.
        """
        found, _ = self._before(round)
        return found.digest if found else None

    def server(self, round: int) -> State:
        """The server's state before a round. Raises UserError."""
        return self._before(round)[1]

    @with_gradients
    def play(
        self,
        round: int,
        final: bool,
        clients: Sequence[int],
        fleets: Callable[..., Keeper] = Keeper,
    ) -> Iterator[tuple[list[int], Keeper]]:
        """What a round scores: ids of some of the ``clients``, and their fleet with
        what it keeps.

        clients: ascending. final: whether the round is the scoring after the last
        aggregation. fleets: makes a fleet of what one is made of. Raises UserError.
        """
        self._refuse_strangers(clients)
        for start in range(0, len(clients), TOGETHER):
            ids = np.array(clients[start : start + TOGETHER])
            alone, prepared = (
                OneProcess(),
                replace(self.prepared, store=self._store(round, ids.tolist())),
            )
            federation = Federation(
                alone,
                prepared,
                self.server(round),
                Checkpoints(self.checkpoints, alone),
                None,
                {},
                lambda round, values: None,
            )
            inbox, _ = federation.send(ids, round)
            cohort = ids[:0] if final else np.intersect1d(ids, federation.select(round))
            trained, others = (
                fleets(**vars(prepared.fleet(chosen, round, scored=True)))
                for chosen in (cohort, np.setdiff1d(ids, cohort))
            )
            if final:
                prepared.method.finish(others, inbox)
            else:
                federation.work(round, inbox, ids, trained, others)
            yield from (
                (fleet.ids.tolist(), fleet)
                for fleet in (trained, others)
                if len(fleet.ids)
            )

    def _refuse_strangers(self, clients: Sequence[int]) -> None:
        """Raises UserError where one of the clients has no model because the run was
        not trained with it.
        """
        known, newcomers = self.prepared.setup.clients, self.prepared.newcomer_ids
        for stranger in [client for client in clients if not 0 <= client < known]:
            why = (
                f"client {stranger} is a newcomer, whose models are not kept"
                if stranger in newcomers
                else f"there is no client {stranger}"
            )
            raise UserError(
                f"{self.folder}: {why}; the clients with models are 0 … {known - 1}"
            )

    @with_gradients
    def _before(self, round: int) -> tuple[Manifest | None, State]:
        """The checkpoint before a round, None before the first, and the server's state
        in it.
        """
        if round not in self._states:
            found = checkpoint.states(self.checkpoints, self.run).get(round - 1)
            try:
                if found is not None:
                    found.verify(self.checkpoints)
                elif round > 1:
                    raise Damaged("it is not kept")
            except Damaged as error:
                raise UserError(
                    f"{self.folder}: the state before round {round} cannot be read "
                    f"({error})"
                ) from None
            nobody = ClientStore([], self.prepared.store.template)
            server = (
                checkpoint.state(self.checkpoints, found, nobody, with_server=True)
                if found
                else None
            )
            self._states[round] = found, server or self.prepared.server
        return self._states[round]

    def _store(self, round: int, ids: list[int]) -> ClientStore:
        """The clients' private state before a round."""
        store = ClientStore(ids, self.prepared.store.template)
        found, _ = self._before(round)
        if found:
            checkpoint.state(self.checkpoints, found, store, with_server=False)
        return store
