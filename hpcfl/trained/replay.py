"""Replay of a run's rounds, to load the models that they scored.

The hooks of a round run again for the requested clients, from the state before the
round. Results are bit-identical on the same processor, GPU and libraries.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcfl.adapters import make_adapter
from hpcfl.clock.schedule import make_schedule
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment.experiment_file import fingerprint
from hpcfl.files import output
from hpcfl.files.atomic import Damaged
from hpcfl.methods.base import State
from hpcfl.simulation import preflight, start_checks, torch_settings
from hpcfl.simulation.prepare import Prepared, prepare, set_up_process
from hpcfl.simulation.round import Round, RoundPlan
from hpcfl.simulation.round_schedule import RoundSchedule
from hpcfl.simulation.stages import FINAL_SCORING, WORK, play
from hpcfl.storage import checkpoint, server_state
from hpcfl.storage import manifest as manifests
from hpcfl.storage.clients import ClientStore
from hpcfl.storage.manifest import Manifest
from hpcfl.storage.run_folder import CHECKPOINTS
from hpcfl.trained import experiment
from hpcfl.trained.recorder import ModelRecorder

# number of clients replayed at once, which limits the models in memory
TOGETHER = 64

# Decorator of functions that a user may call inside ``torch.no_grad`` or
# ``torch.inference_mode``. A replayed round trains, and the tensors stored for the next
# call must allow gradients. It also ends ``torch.no_grad``.
with_gradients = torch.inference_mode(False)


@dataclass
class RoundReplay:
    """Replay of the rounds of a run whose preceding state is stored.

    Attributes:
        folder: folder of the run.
        config: resolved configuration, as in ``experiment.read_again``.
        own: user's own plugins, as in ``experiment.read_again``.
    """

    folder: Path
    config: Mapping[str, Any]
    own: Collection[str]

    def __post_init__(self) -> None:
        """Set the folder of the checkpoints; no file is read yet."""
        self.checkpoints = self.folder / CHECKPOINTS
        self.run = fingerprint(self.config)
        # by round: the preceding checkpoint with the states of server and schedule
        self._states: dict[int, tuple[Manifest | None, State, State]] = {}

    @cached_property
    @torch_settings.plain()
    def _prepared_run(self) -> tuple[Prepared, RoundSchedule]:
        """Prepare the experiment in a single process with all clients before round 1.

        The preflight runs as before the run, which had one lane if it cannot be
        batched. Raises UserError.
        """
        alone = OneProcess()
        config = experiment.read_again(self.folder, self.config, self.own)
        prepared = prepare(config, alone, make_adapter(config.adapter))
        prepared = preflight.run(prepared, alone)
        schedule = make_schedule(prepared, alone)
        newest = manifests.find_latest(self.checkpoints, self.run)
        if newest is not None:
            start_checks.refuse_other_decisions(
                prepared, schedule, newest.meta, self.folder
            )
            for name in start_checks.list_changed_inputs(prepared.inputs, newest.meta):
                output.say(
                    f"note: {self.folder}: {name} has changed since the run, so "
                    "its models may be others"
                )
        return prepared, schedule

    @property
    def prepared(self) -> Prepared:
        """Return the experiment with all clients in a single process, before round 1."""
        return self._prepared_run[0]

    @property
    def schedule(self) -> RoundSchedule:
        """Return the schedule of the run's rounds."""
        return self._prepared_run[1]

    @property
    def rounds(self) -> set[int]:
        """Return the rounds whose preceding state is stored; the last may not have been
        played.
        """
        states = manifests.find_states(self.checkpoints, self.run)
        return {1, *(done + 1 for done in states)}

    def digest(self, number: int) -> str | None:
        """Return the digest of the whole state before a round; None before the first.

        Raises UserError.
        """
        manifest, _, _ = self._read_state_before(number)
        return manifest.digest if manifest else None

    def server(self, number: int) -> State:
        """Return the server's state before a round. Raises UserError."""
        return self._read_state_before(number)[1]

    @with_gradients
    def play(
        self,
        number: int,
        is_final: bool,
        clients: Sequence[int],
        fleet_type: Callable[..., ModelRecorder] = ModelRecorder,
    ) -> Iterator[ModelRecorder]:
        """Play a round for some clients; yield their fleets with the scored models.

        Args:
            number: number of the round.
            is_final: Whether the round is the scoring after the last aggregation.
            clients: ids of the clients, ascending.
            fleet_type: constructor of a ``ModelRecorder``.

        Raises:
            UserError: A client does not exist, or the state is not stored.
        """
        self._refuse_unknown_clients(clients)
        set_up_process(self.prepared.config, OneProcess())
        for start in range(0, len(clients), TOGETHER):
            ids = np.array(clients[start : start + TOGETHER])
            store = self._read_clients(number, ids.tolist())
            prepared = replace(self.prepared, store=store, fleet_type=fleet_type)
            alone = OneProcess()
            _, server, of_schedule = self._read_state_before(number)
            plan = RoundPlan(number, ids[:0], ids, is_scored=True, is_final=True)
            if not is_final:
                self.schedule.begin(
                    prepared=prepared,
                    communicator=alone,
                    done=number - 1,
                    last=number,
                    state=of_schedule,
                )
                plan = self.schedule.plan(number).select(ids)
            round = Round(plan, alone, prepared, server)
            stages = FINAL_SCORING if is_final else self.schedule.list_stages(round)
            names = [stage.name for stage in stages]
            play(round, stages[: names.index(WORK.name) + 1])
            for fleet in round.fleets:
                assert isinstance(fleet, ModelRecorder)
                if len(fleet.ids):
                    yield fleet

    def _refuse_unknown_clients(self, clients: Sequence[int]) -> None:
        """Raise UserError for ids that are not clients of the run."""
        count = self.prepared.setup.clients
        for client in clients:
            if 0 <= client < count:
                continue
            why = f"client {client} does not exist"
            if client in self.prepared.newcomer_ids:
                why = f"client {client} is a newcomer, whose models are not stored"
            raise UserError(
                f"{self.folder}: {why}; clients 0 … {count - 1} have models"
            )

    @with_gradients
    def _read_state_before(self, number: int) -> tuple[Manifest | None, State, State]:
        """Return the checkpoint before a round, None before the first, and its states
        of server and schedule.
        """
        if number not in self._states:
            manifest = self._find_manifest(number)
            server, of_schedule = self.prepared.initial_server_state, State()
            if manifest is not None:
                with self._refuse_damage(number):
                    stored = server_state.read(self.checkpoints, manifest)
                server, of_schedule = self.schedule.split_state(stored)
            self._states[number] = manifest, server, of_schedule
        return self._states[number]

    def _find_manifest(self, number: int) -> Manifest | None:
        """Return the checkpoint before a round, None before the first.

        Raises UserError if it cannot be read.
        """
        manifest = manifests.find_states(self.checkpoints, self.run).get(number - 1)
        with self._refuse_damage(number):
            if manifest is not None:
                manifest.verify(self.checkpoints)
            elif number > 1:
                raise Damaged("it is not stored")
        return manifest

    @contextmanager
    def _refuse_damage(self, number: int) -> Iterator[None]:
        """Convert errors of reading the state before a round to a UserError.

        A running run removes old checkpoints at any moment.
        """
        try:
            yield
        except (Damaged, ValueError, FileNotFoundError) as error:
            raise UserError(
                f"{self.folder}: the state before round {number} cannot be read "
                f"({error})"
            ) from None

    def _read_clients(self, number: int, ids: list[int]) -> ClientStore:
        """Return the private state of clients before a round. Raises UserError."""
        store = ClientStore(ids, self.prepared.store.template)
        manifest, _, _ = self._read_state_before(number)
        if manifest is not None:
            with self._refuse_damage(number):
                checkpoint.read_clients(self.checkpoints, manifest, store)
        return store
