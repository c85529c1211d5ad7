"""The rounds of a run: a loop that plays and records them and writes checkpoints.

``Federation`` has the loop, ``BestRound`` tracks the best round, and ``resume`` returns
the state to start from.
"""

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
from hpcfl.simulation.round import Result, Round, on_this_rank
from hpcfl.simulation.round_schedule import RoundSchedule
from hpcfl.simulation.signals import StopRequest
from hpcfl.simulation.stages import FINAL_SCORING, conclude, play
from hpcfl.storage.checkpoint import (
    BestState,
    Checkpoints,
    CheckpointSchedule,
    Restored,
)
from hpcfl.storage.clients import ClientStore
from hpcfl.storage.metrics import ResultsWriter

# Votes of the ranks after a round; the highest vote wins.
CONTINUE, CHECKPOINT, STOP = 0, 1, 2


def resume(
    prepared: Prepared,
    schedule: RoundSchedule,
    communicator: Communicator,
    restored: Restored | None,
) -> State:
    """Return the server's state before the next round, and resume the schedule.

    Collective call. The state is the one after a checkpoint, or the initial state.

    Args:
        prepared: experiment.
        schedule: schedule, which continues after the checkpoint.
        communicator: communicator of all ranks.
        restored: checkpoint; None to start before round 1.

    Raises:
        UserError: The schedule cannot continue from the checkpoint.
    """
    done, server, of_schedule = 0, State(), State()
    if restored is None:
        with agreed(communicator):
            server = prepared.initial_server_state
    else:
        done = restored.round
        if restored.server is not None:
            server, of_schedule = schedule.split_state(restored.server)
    schedule.begin(
        prepared=prepared,
        communicator=communicator,
        done=done,
        last=prepared.config.rounds,
        state=of_schedule,
    )
    return server


def ignore_result(result: Result) -> None:
    """Do nothing with the result of a round."""


@dataclass
class BestRound:
    """The best round so far, and the state before it.

    The models of the round can be recomputed from this state.

    The state is not copied, because server and clients replace tensors of their state
    and never change them in place. It is saved with the next checkpoint. A resumed run
    plays the rounds after that checkpoint again and finds the same best round.

    Attributes:
        column: column of the metric to compare.
        measure: metric to compare.
        number: best value so far; None before the first.
    """

    column: str
    measure: Measure
    number: float | None
    _before: BestState | None = None
    _unwritten: BestState | None = None

    def remember(
        self, round: int, server: Mapping[str, Tensor] | None, clients: ClientStore
    ) -> None:
        """Keep references to the state before a round.

        Args:
            round: number of the round.
            server: state of the server; None on other ranks than 0.
            clients: private state of this rank's clients.
        """
        self._before = BestState(
            round - 1, np.nan, server and dict(server), clients.snapshot()
        )

    def judge(self, communicator: Communicator, values: Mapping[str, Any]) -> None:
        """Keep the state from ``remember`` if its round is the best. Collective call.

        Args:
            communicator: communicator of all ranks.
            values: metrics of the round, on rank 0.
        """
        name = str(MetricName(self.measure.recorded, self.column))
        number = communicator.bcast(float(values.get(name, np.nan)))
        if np.isnan(number):
            return
        orient, best = self.measure.orient, self.number
        if best is None or orient(number) > orient(best):
            assert self._before is not None
            self.number = number
            self._unwritten = replace(self._before, number=number)

    def take(self) -> BestState | None:
        """Return the best state, or None if a checkpoint already has it."""
        best, self._unwritten = self._unwritten, None
        return best


@dataclass
class Federation:
    """The rounds of a run on this rank.

    Attributes:
        communicator: communicator of all ranks.
        prepared: experiment.
        server: state of the server; empty on workers.
        schedule: cohorts, stages and times of the rounds.
        checkpoints: writer of checkpoints.
        writer: writer of results, on rank 0 only.
        meta: entries of every checkpoint that describe the run.
        announce: function called on rank 0 with each recorded round.
        best: tracker of the best round if its state is saved, else None.
    """

    communicator: Communicator
    prepared: Prepared
    server: State
    schedule: RoundSchedule
    checkpoints: Checkpoints
    writer: ResultsWriter | None
    meta: dict[str, Any]
    announce: Callable[[Result], None] = ignore_result
    best: BestRound | None = None
    timing: CheckpointSchedule = field(init=False)
    # Seconds for the supervisor of a job, which compares them with the time limit: of the
    # longest round, and of copying the state for a checkpoint.
    _longest: float = 0.0
    _copied_in: float = 0.0
    # Results of rounds that are not recorded yet.
    _unrecorded: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timing = CheckpointSchedule(self.prepared.config.checkpoint.every)

    def run(self, done: int, request: StopRequest) -> None:
        """Play the rounds after ``done``, then score the final models. Collective call.

        Args:
            done: number of the last round that is complete.
            request: request to stop, set by signals.

        Raises:
            Interrupted: A stop signal arrived.
            RunFailure: Diverged clients end the run.
        """
        rounds = self.prepared.config.rounds
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
            # The checkpoint of an earlier round was written during this round.
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

        Rank 0 records earlier rounds while the workers train.
        """
        round = Round(
            self.schedule.plan(number),
            self.communicator,
            self.prepared,
            self.server,
            vote=partial(self.vote, number, request),
        )
        play(round, self.schedule.list_stages(round), [self.record_during_work])
        result = conclude(round, self.schedule.get_times(number))
        self._unrecorded.append(result)
        self.schedule.share_losses(self.communicator, number, result.numbers)
        if self.best is not None and round.plan.is_scored:
            self.best.judge(self.communicator, result.numbers.values)
        return max(round.collected.vote, self.plan_vote(number))

    def record_during_work(self, stage: str, round: Round) -> None:
        """Record earlier rounds while the workers train, as an observer of stages."""
        if stage == "send":
            self.record_rounds()

    def finish(self) -> None:
        """Score the models of the last aggregation. Collective call."""
        prepared = self.prepared
        plan = self.schedule.plan_final(prepared.newcomer_ids)
        round = Round(plan, self.communicator, prepared, self.server)
        play(round, FINAL_SCORING)
        times = self.schedule.get_times(plan.number)
        self._unrecorded.append(conclude(round, times))
        self.record_rounds()

    def vote(self, number: int, request: StopRequest) -> int:
        """Return this rank's vote after a round: stop, checkpoint or continue.

        A signal that reaches only ranks that already wait for others takes effect in
        the next round.
        """
        if request.received:
            return STOP
        return CHECKPOINT if self.timing.is_due(number) else CONTINUE

    def plan_vote(self, number: int) -> int:
        """Return the planned action after a round, which is the same on all ranks.

        The round before the last always ends with a checkpoint, from which the models
        of the last round can be recomputed.
        """
        before_last = number == self.prepared.config.rounds - 1
        planned = before_last or self.timing.is_planned(number)
        return CHECKPOINT if planned else CONTINUE

    def record_rounds(self) -> None:
        """Record and announce on rank 0 the rounds that are not recorded yet."""
        results, self._unrecorded = self._unrecorded, []
        if self.writer is None:
            return
        for result in results:
            plan = result.plan
            with on_this_rank(f"{plan.name}, metrics"):
                record = self.writer.conclude if plan.is_final else self.writer.record
                record(plan.number, result.values, result.numbers.clients)
            with on_this_rank(f"{plan.name}, report"):
                self.announce(result)

    def save_metrics(self, number: int) -> None:
        """Save the metrics of earlier rounds after a failure. Collective call.

        All ranks call it, because they fail together.
        """
        self.record_rounds()
        if self.writer is not None:
            with on_this_rank(f"round {number}, metrics"):
                self.writer.publish()
        self.checkpoints.finish()

    def checkpoint(self, number: int, wait: bool) -> None:
        """Merge the metrics and begin to save all state. Collective call.

        Args:
            number: number of the round.
            wait: whether to wait until the checkpoint is complete.
        """
        self.record_rounds()
        begun = time.monotonic()
        stopwatch = self.prepared.resources.stopwatch
        with stopwatch.phase("checkpoint"), self.timing.waiting():
            if self.writer is not None:
                with on_this_rank(f"round {number}, metrics"):
                    self.writer.merge()
            server = self._server_state()
            best = self.best.take() if self.best else None
            meta = self.meta | {"lanes": self._gather_lane_limits()}
            with on_this_rank(f"round {number}, checkpoint"):
                self.checkpoints.start(
                    round=number,
                    server=server,
                    clients=self.prepared.store,
                    meta=meta,
                    best=best,
                )
            self.timing.record_begin()
        self._copied_in = time.monotonic() - begun
        if wait:
            self.finish_checkpoint()

    def _server_state(self) -> Mapping[str, Tensor] | None:
        """Return the state of server and schedule on rank 0, or None on other ranks."""
        if not self.communicator.is_server:
            return None
        return self.server | self.schedule.get_stored_state()

    def _gather_lane_limits(self) -> list[list[int]] | None:
        """Return the maximum numbers of lanes of each rank on rank 0. Collective call.

        None if the bits of results do not depend on lanes.
        """
        if not self.prepared.gpus:
            return None
        return self.communicator.gather(self.prepared.resources.lane_limits)

    def finish_checkpoint(self) -> None:
        """Wait until a checkpoint in progress, if any, is on disk. Collective call."""
        stopwatch = self.prepared.resources.stopwatch
        with stopwatch.phase("checkpoint"), self.timing.waiting():
            self.checkpoints.finish()
        written_in = self.checkpoints.written_in
        if self.timing.record_end(written_in) and self.communicator.is_server:
            under_way = 0.0  # remaining seconds of an earlier checkpoint
            if self.prepared.config.checkpoint.every != "auto":
                under_way = max(0.0, written_in - self._longest)
            checkpoint = self._copied_in + written_in + under_way
            output.keep_pace(self._longest, checkpoint)
