"""The rounds of a run: played one after the other, recorded, and saved in checkpoints."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import Interrupted, RunFailure
from hpcfl.files import output
from hpcfl.methods.base import State
from hpcfl.scores.metric_names import Measure, MetricName
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import FINAL_SCORING, Result, Round, conclude
from hpcfl.simulation.round_schedule import RoundSchedule
from hpcfl.simulation.signals import StopRequest
from hpcfl.simulation.stages import on_this_rank, play
from hpcfl.storage.checkpoint import Best, Checkpoints, CheckpointSchedule, Restored
from hpcfl.storage.clients import ClientStore
from hpcfl.storage.metrics import MetricsWriter

# After a round every rank votes for one of these; the highest vote wins.
CONTINUE, CHECKPOINT, STOP = 0, 1, 2


def resume(
    prepared: Prepared,
    schedule: RoundSchedule,
    communicator: Communicator,
    restored: Restored | None,
) -> State:
    """Return the server's state after a checkpoint or before round 1, and let the
    schedule continue from it. Collective call.

    Raises UserError if the schedule cannot.
    """
    done, server, simulator = 0, State(), State()
    if restored is None:
        with agreed(communicator):
            server = prepared.initial_server_state
    else:
        done = restored.round
        if restored.server is not None:
            server, simulator = schedule.split_state(restored.server)
    schedule.begin(
        prepared=prepared,
        communicator=communicator,
        done=done,
        last=prepared.config.rounds,
        state=simulator,
    )
    return server


def ignore_result(result: Result) -> None:
    """Do nothing with the result of a round."""


@dataclass
class BestRound:
    """The best round so far, and the state before it, from which a run makes its models.

    Nothing is copied: neither the server nor the clients change a tensor of their
    state, they make new ones. The state is saved with the next checkpoint. A resumed
    run plays the rounds after that checkpoint again, and finds the same best one.

    Attributes:
        column, measure: what counts.
        number: the best so far, None before any.
    """

    column: str
    measure: Measure
    number: float | None
    _before: Best | None = None
    _unwritten: Best | None = None

    def remember(
        self, round: int, server: Mapping[str, Tensor] | None, clients: ClientStore
    ) -> None:
        """Hold on to the state before a round. ``server``: None but on rank 0."""
        self._before = Best(
            round - 1, np.nan, server and dict(server), clients.snapshot()
        )

    def judge(self, communicator: Communicator, values: Mapping[str, Any]) -> None:
        """Keep the state that ``remember`` received if its round is the best so far.
        Collective call.

        values: the numbers of the round, on rank 0.
        """
        name = str(MetricName(self.measure.recorded, self.column))
        number = communicator.bcast(float(values.get(name, np.nan)))
        if np.isnan(number):
            return
        rank, best = self.measure.rank, self.number
        if best is None or rank(number) > rank(best):
            assert self._before is not None
            self.number = number
            self._unwritten = replace(self._before, number=number)

    def take(self) -> Best | None:
        """Return the best state, unless a checkpoint has it already."""
        best, self._unwritten = self._unwritten, None
        return best


@dataclass
class Federation:
    """The rounds of a run, as this rank takes part in them.

    server: the server's state; empty on workers.
    schedule: the cohorts, stages and times of the rounds.
    metrics: on rank 0 only.
    meta: what every checkpoint says of the run.
    announce: called on rank 0 with each recorded round.
    best: what finds the best round, where its state is to be kept.
    """

    communicator: Communicator
    prepared: Prepared
    server: State
    schedule: RoundSchedule
    checkpoints: Checkpoints
    metrics: MetricsWriter | None
    meta: dict[str, Any]
    announce: Callable[[Result], None] = ignore_result
    best: BestRound | None = None
    timing: CheckpointSchedule = field(init=False)
    # seconds before the first round, of the longest round, and of copying the state for
    # the last checkpoint
    _started_in: float = 0.0
    _longest: float = 0.0
    _copied_in: float = 0.0
    # the last rounds, until there is time to record them
    _unrecorded: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timing = CheckpointSchedule(self.prepared.config.checkpoint.every)

    def run(self, done: int, request: StopRequest) -> None:
        """Play the rounds after ``done``, then score the final models. Collective call.

        Raises:
            Interrupted: a stop signal came.
            RunFailure: diverged clients end the run.
        """
        rounds = self.prepared.config.rounds
        self._started_in = output.seconds_since_start()
        for number in range(done + 1, rounds + 1):
            begun = time.monotonic()
            if self.best is not None:
                self.best.remember(number, self._server_state(), self.prepared.store)
            try:
                vote = self.play_round(number, request)
            except RunFailure:
                self.save_metrics(number)
                raise
            self._longest = max(self._longest, time.monotonic() - begun)
            # The checkpoint of an earlier round was written during this one.
            self.finish_checkpoint()
            last = vote == STOP or number == rounds
            if last or vote == CHECKPOINT:
                self.checkpoint(number, wait=last)
            if vote == STOP:
                left = "" if number < rounds else ", before the final scoring"
                raise Interrupted(
                    f"stopped after round {number} of {rounds}{left}; "
                    "the same command continues"
                )
        self.finish()

    def play_round(self, number: int, request: StopRequest) -> int:
        """Play one round and return the highest vote of the ranks. Collective call.

        Rank 0 records the rounds before it while the workers train.
        """
        round = Round(
            self.schedule.plan(number),
            self.communicator,
            self.prepared,
            self.server,
            vote=partial(self.vote, number, request),
        )
        play(round, self.schedule.stages(round), [self.use_wait])
        result = conclude(round, self.schedule.times(number))
        self._unrecorded.append(result)
        self.schedule.share_losses(self.communicator, number, result.numbers)
        if self.best is not None and round.plan.is_scored:
            self.best.judge(self.communicator, result.numbers.values)
        return max(result.vote, self.planned(number))

    def use_wait(self, stage: str, round: Round) -> None:
        """Record earlier rounds while the workers train.

        It is an observer of the stages of a round.
        """
        if stage == "send":
            self.record_rounds()

    def finish(self) -> None:
        """Score the models of the last aggregation. Collective call."""
        prepared = self.prepared
        plan = self.schedule.plan_final(prepared.newcomer_ids)
        round = Round(plan, self.communicator, prepared, self.server)
        play(round, FINAL_SCORING)
        times = self.schedule.times(plan.number)
        self._unrecorded.append(conclude(round, times))
        self.record_rounds()

    def vote(self, number: int, request: StopRequest) -> int:
        """Return this rank's vote after a round: stop, checkpoint or continue.

        A signal that reaches only ranks that already wait for others counts for the
        next round. Rounds in which ranks do not meet have no vote.
        """
        if request.received:
            return STOP
        return CHECKPOINT if self.timing.is_due(number) else CONTINUE

    def planned(self, number: int) -> int:
        """Return the planned action after a round, which is the same on all ranks.

        The round before the last always ends with a checkpoint. The models that the
        last round trains can be made again from it.
        """
        before_last = number == self.prepared.config.rounds - 1
        planned = before_last or self.timing.is_planned(number)
        return CHECKPOINT if planned else CONTINUE

    def record_rounds(self) -> None:
        """Record and announce the last rounds on rank 0, as far as that is not done
        already.
        """
        results, self._unrecorded = self._unrecorded, []
        if self.metrics is None:
            return
        for result in results:
            final = result.is_final
            name = "after the last round" if final else f"round {result.number}"
            with on_this_rank(f"{name}, metrics"):
                record = self.metrics.conclude if final else self.metrics.record
                record(result.number, result.values, result.numbers.clients)
            with on_this_rank(f"{name}, report"):
                self.announce(result)

    def save_metrics(self, number: int) -> None:
        """Save the recorded values of earlier rounds after a failure. Collective call.

        All ranks call this, because they fail together.
        """
        self.record_rounds()
        if self.metrics is not None:
            with on_this_rank(f"round {number}, metrics"):
                self.metrics.publish()
        self.checkpoints.finish()

    def checkpoint(self, number: int, wait: bool) -> None:
        """Merge the metrics and begin to save all state. With ``wait``, finish the
        checkpoint as well. Collective call.
        """
        self.record_rounds()
        begun = time.monotonic()
        stopwatch = self.prepared.resources.stopwatch
        with stopwatch.phase("checkpoint"), self.timing.waiting():
            if self.metrics is not None:
                with on_this_rank(f"round {number}, metrics"):
                    self.metrics.merge()
            server = self._server_state()
            best = self.best.take() if self.best else None
            meta = self.meta | {"lanes": self._lanes_of_ranks()}
            with on_this_rank(f"round {number}, checkpoint"):
                self.checkpoints.start(
                    round=number,
                    server=server,
                    clients=self.prepared.store,
                    meta=meta,
                    best=best,
                )
            self.timing.begun()
        self._copied_in = time.monotonic() - begun
        if wait:
            self.finish_checkpoint()

    def _server_state(self) -> Mapping[str, Tensor] | None:
        """Return rank 0's state beside the clients' state, or None on other ranks."""
        if not self.communicator.is_server:
            return None
        return self.server | self.schedule.stored_state()

    def _lanes_of_ranks(self) -> list[list[int]] | None:
        """Return on rank 0 the current lanes of each rank, or None where no bit depends
        on them. Collective call.
        """
        if not self.prepared.gpus:
            return None
        return self.communicator.gather(self.prepared.resources.lanes)

    def finish_checkpoint(self) -> None:
        """Wait until the checkpoint that was begun, if any, is on the disk. Collective
        call.
        """
        stopwatch = self.prepared.resources.stopwatch
        with stopwatch.phase("checkpoint"), self.timing.waiting():
            self.checkpoints.finish()
        written_in = self.checkpoints.written_in
        if self.timing.finished(written_in) and self.communicator.is_server:
            under_way = 0.0  # the rest of an earlier checkpoint
            if self.prepared.config.checkpoint.every != "auto":
                under_way = max(0.0, written_in - self._longest)
            checkpoint = self._copied_in + written_in + under_way
            output.keep_pace(self._longest, checkpoint, self._started_in)
