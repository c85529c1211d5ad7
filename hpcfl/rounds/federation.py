"""The loop over rounds, which the server and the workers run alike.

A round: select the cohort, send, score and train, gather, aggregate, record, perhaps
begin a checkpoint.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Inbox, Message, only, select
from hpcfl.errors import Interrupted, RankFailure, RunFailure
from hpcfl.fleet import Fleet, memory
from hpcfl.methods.base import State
from hpcfl.preparation.prepare import Prepared
from hpcfl.rounds import record
from hpcfl.rounds.best import BestRound
from hpcfl.rounds.signals import StopRequest
from hpcfl.rows import randomness
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.metrics import MetricsWriter
from hpcfl.storage.moments import AFTER, BEFORE
from hpcfl.storage.results import FINAL
from hpcfl.storage.schedule import Schedule

# What a rank asks for after a round: all ranks do the highest of these levels that any
# rank asks for.
GO_ON, SAVE, STOP = 0, 1, 2


@dataclass
class Federation:
    """The rounds of a run, as this rank takes part in them.

    server: the server's state; empty on workers. metrics: on rank 0 only.
    meta: what every checkpoint says of the run. report: called on rank 0 with each
        round and its numbers.
    best: what finds the best round, where its state is to be kept.
    """

    communicator: Communicator
    prepared: Prepared
    server: State
    checkpoints: Checkpoints
    metrics: MetricsWriter | None
    meta: dict[str, Any]
    report: Callable[[int, dict[str, Any]], None]
    best: BestRound | None = None
    schedule: Schedule = field(init=False)
    _bytes: tuple[int, int] = field(
        default=(0, 0)
    )  # sent and received when ``costs`` last looked
    # the last round, the clients' numbers and what it cost
    _unrecorded: tuple[int, record.Gathered, dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.prepared.config.checkpoint.every)

    def run(self, done: int, request: StopRequest) -> None:
        """Collective. Play the rounds after ``done``, then score the final models.

        Raises Interrupted after a stop signal, RunFailure where diverged clients end
        the run.
        """
        config = self.prepared.config
        for round in range(done + 1, config.rounds + 1):
            if self.best is not None:
                server = self.server if self.communicator.is_server else None
                self.best.before(round, server, self.prepared.store)
            try:
                level = self.play(round, request)
            except RunFailure:
                # All ranks fail together here, so what earlier rounds recorded and
                # began to save can be kept.
                if self.metrics is not None:
                    with on_this_rank(f"round {round}, metrics"):
                        self.metrics.publish()
                self.checkpoints.finish()
                raise
            last = level == STOP or round == config.rounds
            # one that an earlier round began was written meanwhile
            self.finish_checkpoint()
            if last or level == SAVE:
                self.checkpoint(round, wait=last)
            if level == STOP:
                left = "" if round < config.rounds else ", before the final scoring"
                raise Interrupted(
                    f"stopped after round {round} of {config.rounds}{left}; "
                    "the same command continues"
                )
        self.finish(config.rounds)

    def play(self, round: int, request: StopRequest) -> int:
        """Collective. Play one round; returns the level that the ranks agree on."""
        cohort, stopwatch = self.select(round), self.prepared.resources.stopwatch
        scored, audience = self.asked(round, cohort)
        participants = self.prepared.fleet(
            cohort, round, scored
        )  # while the workers wait for the message
        observers = self.prepared.fleet(np.setdiff1d(audience, cohort), round, scored)
        with stopwatch.phase("send"):
            inbox, floats_down = self.send(audience, round)
        # the round before, while the workers are busy with this one
        self.record_round()
        self.prepared.store.read_ahead(self.select(round + 1).tolist())
        uplink, finite = self.work(round, inbox, audience, participants, observers)
        numbers = [
            (participants.ids, record.numbers(participants, uplink, finite)),
            (observers.ids, record.numbers(observers, None, None)),
        ]
        uplink = only(uplink, finite)
        headers = [
            exchange.header(uplink),
            participants.ids[~finite.numpy()].tolist(),
            record.header(numbers, dict(stopwatch.seconds)),
            self.wish(round, request),
        ]
        with stopwatch.phase("gather"), self.communicator.collective_block():
            of_uplinks, lost, of_numbers, wishes = zip(
                *self.communicator.allgather(headers), strict=True
            )
            gathered = record.gather(
                self.communicator,
                self.prepared.placement,
                audience,
                len(self.prepared.counts),
                numbers,
                of_numbers,
                self.prepared.resources.scores,
            )
            diverged = np.array(sorted(itertools.chain(*lost)), np.int64)
            sound = np.setdiff1d(cohort, diverged)
            self.judge(gathered)
        self.refuse(round, diverged)
        with stopwatch.phase("gather"), on_this_rank(f"round {round}, uploads"):
            arrived = exchange.gather(
                self.communicator,
                self.prepared.placement,
                sound,
                uplink,
                of_uplinks,
            )
        with on_this_rank(f"round {round}, state of {_named(participants.ids)}"):
            self.keep(participants, finite.numpy())
        with stopwatch.phase("aggregate"):
            if arrived is not None and len(
                sound
            ):  # where all clients diverged, the server takes no step
                with on_this_rank(f"round {round}, aggregation"):
                    self.prepared.method.aggregate(
                        self.server, self.prepared.cohort(sound, round), arrived
                    )
        if self.metrics is not None:
            self._unrecorded = round, gathered, self.costs(floats_down) | {FINAL: 0}
        # so a checkpoint that follows counts for the next round
        stopwatch.seconds.clear()
        return int(max(wishes))

    def asked(self, round: int, cohort: np.ndarray) -> tuple[bool, np.ndarray]:
        """Whether the round is scored, and the ids [n] of those that get a message: the
        cohort, or all.
        """
        config = self.prepared.config
        scored = round % config.evaluation.every == 0 or round == config.rounds
        to_all = scored and config.evaluation.clients == "all"
        return scored, np.arange(self.prepared.setup.clients) if to_all else cohort

    def work(
        self,
        round: int,
        inbox: Inbox,
        audience: np.ndarray,
        participants: Fleet,
        observers: Fleet,
    ) -> tuple[Message, torch.Tensor]:
        """Train this rank's ``participants`` and score its ``observers``.

        Returns what goes up, and which participants have finite numbers only, bool [n].
        """
        method = self.prepared.method
        participants.pace = self.pace(round, participants.ids)
        uplink: Message = {}
        with self.prepared.resources.stopwatch.phase("train"):
            with on_this_rank(f"round {round}, {_named(participants.ids)}"):
                if len(participants.ids):
                    uplink = method.update(
                        participants, self.pick(inbox, audience, participants)
                    )
            with on_this_rank(f"round {round}, {_named(observers.ids)}"):
                if len(observers.ids):
                    method.observe(observers, self.pick(inbox, audience, observers))
        return uplink, record.finite(participants, uplink)

    def judge(self, gathered: record.Gathered) -> None:
        """Collective. Keep the state before a round with these numbers, of rank 0, if
        it is the best.
        """
        if self.best is not None:
            server = self.communicator.is_server
            number = self.communicator.bcast(
                self.best.found(gathered.values) if server else None
            )
            if number is not None:
                self.best.keep(number)

    def refuse(self, round: int, diverged: np.ndarray) -> None:
        """Raise RunFailure where clients that ``diverged``, ids of all ranks, end the
        run.
        """
        if len(diverged) and self.prepared.config.training.on_divergence == "stop":
            raise RunFailure(
                f"round {round}: {_named(diverged)} diverged (NaN or Inf); "
                "lower training.lr or set training.clip and start over with --fresh, or "
                "leave such clients out with training.on_divergence = 'exclude'"
            )

    def wish(self, round: int, request: StopRequest) -> int:
        """The level that this rank asks for after a round, told with what it sends.

        A signal that reaches only ranks that are waiting for others by then counts for
        the next round.
        """
        return STOP if request.received else SAVE if self.due(round) else GO_ON

    def due(self, round: int) -> bool:
        """Whether a checkpoint is due: by schedule, and before the last round.

        From that one the models that the last round trains can be made again, when
        somebody wants them.
        """
        return self.schedule.due(round) or round == self.prepared.config.rounds - 1

    def select(self, round: int) -> np.ndarray:
        """The ids [n] of a round's cohort, ascending.

        Of M clients ⌊ρM⌋ are drawn uniformly without replacement, at least one, where ρ
        is ``participation.fraction`` (protocols.md E2). Each of them is lost with the
        probability ``participation.dropout`` and hears nothing of this round; the
        luckiest stays in any case.
        """
        config = self.prepared.config
        clients, share = config.partition.clients, config.participation
        order: np.ndarray = randomness.permutation(
            clients, config.seed, "cohort", round
        )
        drawn = order[: share.count(clients)]
        if share.dropout:
            luck = randomness.uniform(
                config.seed, "dropout", round, skip=0, count=clients
            )[drawn]
            drawn = drawn[luck >= min(share.dropout, luck.max())]
        return np.sort(drawn)

    def pace(self, round: int, ids: np.ndarray) -> np.ndarray | None:
        """The share of the epochs of each local training that the clients ``ids`` [n] of
        a round's cohort do; None: all.

        As in FedProx's experiments (Li et al., MLSys 2020): of the cohort, a share
        ``stragglers``, drawn anew in each round, does a number of epochs that is
        uniform in 1 … E. It is one share for all trainings that a method does in the
        round, those of heads or personal models too. Nobody is left out for it.
        """
        share = self.prepared.config.participation.stragglers
        if not share:
            return None
        cohort = self.select(round)
        seed, clients = self.prepared.config.seed, self.prepared.setup.clients
        luck, pace = (
            randomness.uniform(seed, purpose, round, skip=0, count=clients)
            for purpose in ("stragglers", "pace")
        )
        slow = cohort[
            np.argsort(luck[cohort], kind="stable")[: int(share * len(cohort) + 1e-9)]
        ]
        return np.where(np.isin(ids, slow), pace[ids], 1.0)

    def send(
        self, audience: np.ndarray, round: int, new: bool = False
    ) -> tuple[Inbox, float]:
        """Collective. Send the method's message to the clients ``audience`` [n];
        ``new``: to newcomers.

        Returns what arrived for those of them that live on this rank, and the mean
        floats sent to a client.
        """
        server, method = self.communicator.is_server, self.prepared.method
        with on_this_rank(f"round {round}, what the server sends"):
            known = self.prepared.audience(audience, round)
            message = (
                (method.send_to_newcomers if new else method.send)(self.server, known)
                if server
                else None
            )
            return exchange.send(
                self.communicator,
                self.prepared.placement,
                audience,
                message,
                self.prepared.resources.device,
            )

    def pick(self, inbox: Inbox, audience: np.ndarray, fleet: Fleet) -> Inbox:
        """The part of this rank's ``inbox`` that is for the clients of ``fleet``, some
        of its audience.
        """
        mine = audience[
            self.prepared.placement.owner[audience] == self.communicator.rank
        ]
        if len(mine) == len(fleet.ids):
            return inbox
        return select(inbox, torch.from_numpy(np.searchsorted(mine, fleet.ids)))

    def keep(self, fleet: Fleet, finite: np.ndarray) -> None:
        """Store the private state of the fleet's clients where ``finite`` [n]; others
        keep their old one.
        """
        state = fleet.state
        if (
            not finite.all()
        ):  # else there is nothing to leave out, and no reason to copy the rest
            kept = torch.from_numpy(np.flatnonzero(finite)).to(
                self.prepared.resources.device
            )
            state = {name: rows[kept] for name, rows in state.items()}
        self.prepared.store.put(fleet.ids[finite].tolist(), state)

    def costs(self, floats_down: float) -> dict[str, float | int]:
        """What the round cost on rank 0: bytes, floats and seconds since the last call."""
        sent, received = self.communicator.bytes_sent, self.communicator.bytes_received
        moved = {
            "bytes_down": sent - self._bytes[0],
            "bytes_up": received - self._bytes[1],
            "floats_down": floats_down,
        }
        self._bytes = sent, received
        stopwatch = self.prepared.resources.stopwatch
        phases = {
            f"seconds/{phase}": stopwatch.seconds[phase]
            for phase in ("send", "gather", "aggregate", "checkpoint")
        }
        return moved | phases | {"seconds/round": stopwatch.lap()}

    def record_round(self) -> None:
        """Record and report the round that was played last, unless that is done
        already.

        It is called when the workers do not wait for rank 0.
        """
        if self.metrics is not None and self._unrecorded is not None:
            (round, gathered, costs), self._unrecorded = self._unrecorded, None
            with on_this_rank(f"round {round}, metrics"):
                values = gathered.values | costs
                self.metrics.record(round, values)
            with on_this_rank(f"round {round}, report"):
                self.report(round, values)

    def checkpoint(self, round: int, wait: bool) -> None:
        """Collective. Merge the metrics and begin to save all state; with ``wait``,
        finish that as well.
        """
        self.record_round()
        with (
            self.prepared.resources.stopwatch.phase("checkpoint"),
            self.schedule.waiting(),
        ):
            if self.metrics is not None:
                with on_this_rank(f"round {round}, metrics"):
                    self.metrics.merge()
            server = self.server if self.communicator.is_server else None
            with on_this_rank(f"round {round}, checkpoint"):
                self.checkpoints.start(
                    round,
                    server,
                    self.prepared.store,
                    self.meta,
                    self.best.taken() if self.best else None,
                )
            self.schedule.begun()
        if wait:
            self.finish_checkpoint()

    def finish_checkpoint(self) -> None:
        """Collective. Wait until the checkpoint that was begun, if any, is on the disk;
        note its cost.
        """
        with (
            self.prepared.resources.stopwatch.phase("checkpoint"),
            self.schedule.waiting(),
        ):
            self.checkpoints.finish()
        self.schedule.finished(self.checkpoints.written_in)

    def finish(self, rounds: int) -> None:
        """Collective. Score the models that the last aggregation made, as round
        ``rounds`` + 1.

        Private state stays as it is.
        """
        everyone, newcomers = (
            np.arange(self.prepared.setup.clients),
            self.prepared.newcomer_ids,
        )
        audience = (
            everyone
            if self.prepared.config.evaluation.clients == "all"
            else self.select(rounds)
        )
        inbox, floats_down = self.send(audience, rounds + 1)
        fleet = self.prepared.fleet(audience, rounds + 1, scored=True)
        with on_this_rank(f"after the last round, {_named(fleet.ids)}"):
            if len(fleet.ids):
                self.prepared.method.finish(fleet, self.pick(inbox, audience, fleet))
        numbers = [(fleet.ids, record.numbers(fleet, None, None))]
        if len(newcomers):
            numbers.append(self.welcome(newcomers, rounds + 1))
        gathered = record.gather(
            self.communicator,
            self.prepared.placement,
            np.concatenate([audience, newcomers]),
            len(self.prepared.counts),
            numbers,
            self.communicator.allgather(record.header(numbers, {})),
            self.prepared.resources.scores,
        )
        if self.metrics is not None:
            values = gathered.values | self.costs(floats_down) | {FINAL: 1}
            with on_this_rank("after the last round, metrics"):
                self.metrics.conclude(rounds + 1, values)
            with on_this_rank("after the last round, report"):
                self.report(rounds + 1, values)

    def welcome(self, ids: np.ndarray, round: int) -> tuple[np.ndarray, record.Numbers]:
        """Collective. Score the newcomers ``ids`` before and after their own training,
        where they do any.

        Returns which of them live on this rank, and their numbers. Nothing of it stays.
        """
        inbox, _ = self.send(ids, round, new=True)
        fleet, method = self.prepared.new_fleet(), self.prepared.method
        with on_this_rank(f"after the last round, {_named(fleet.ids)}"):
            if len(fleet.ids):
                method.init_newcomers(fleet, inbox)
                (
                    method.train_newcomers
                    if self.prepared.config.newcomers.epochs
                    else method.observe
                )(fleet, inbox)
        columns = {"pre": BEFORE, "post": AFTER}
        fleet.scores = {
            columns[name]: sums
            for name, sums in fleet.scores.items()
            if name in columns
        }
        fleet.recorded = {}
        return fleet.ids, record.numbers(fleet, None, None)


@contextmanager
def on_this_rank(where: str) -> Iterator[None]:
    """Turn what fails inside the block into a RankFailure at ``where``, which ends the
    whole job.

    For failures of this rank alone: the others go on and will wait for it, so that the
    ranks cannot agree on an end any more.
    """
    try:
        yield
    except Exception as error:
        raise RankFailure(where) from (memory.failure(error) or error)


def _named(clients: np.ndarray) -> str:
    """``clients 3, 7``, at most ten of them, for messages."""
    shown = ", ".join(str(client) for client in clients[:10])
    return f"client{'s' if len(clients) > 1 else ''} {shown}{' …' if len(clients) > 10 else ''}"
