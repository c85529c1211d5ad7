"""The preflight: an experiment tried on a few samples before round 1, to find mistakes
in a user's own code.

Nothing is written. All that it changes is made for it and thrown away, and random
numbers are keyed: a run computes the same with and without it.
"""

import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NoReturn

import numpy as np
import torch

from hpcfl.clients.batch_plan import AskedTraining
from hpcfl.clients.execution import SerialKernel, is_batching_limit
from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator, OneProcess
from hpcfl.errors import RankFailure, RunFailure, UserError
from hpcfl.experiment import user_code
from hpcfl.methods.base import State
from hpcfl.rows.declared import UnknownName
from hpcfl.simulation import dry_round, score_check
from hpcfl.simulation.diagnosis import (
    describe_failure,
    describe_unbatched,
    diagnose,
    diagnose_model,
    is_failure,
    place_text,
)
from hpcfl.simulation.hooks import find_called_hook
from hpcfl.simulation.prepare import Prepared, Tried
from hpcfl.simulation.round import FINAL_SCORING, Round
from hpcfl.simulation.stages import RoundPlan, no_clients, on_this_rank, play

# Errors of hooks that are no mistakes of the user. In a dry round all clients' messages
# are equal, and a method may fail on such input. Torch documents LinAlgError in this
# place, but its annotations do not count it as public.
EXCUSED = (
    ValueError,
    ArithmeticError,
    AssertionError,
    dry_round.EnoughHeartbeats,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]
)


class Elsewhere(Exception):
    """The cause of a mistake on another rank; its text is the traceback there."""


def run(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment and return it as it can run. Collective.

    If clients cannot be batched and ``runtime.lanes`` is "auto", it has one lane and a
    note. Another note names operators whose result for a client depends on the clients
    beside it. Raises UserError for a mistake on any rank and RunFailure for any other
    error, with the same line on all ranks.
    """
    lanes = prepared.resources.kernel.widest
    with one_line_on_all_ranks(communicator):
        try_own_scores(prepared)
        error, found = try_round(prepared, lanes)
        if error is not None:
            found = try_alone(prepared, lanes, error)
    tried = merge([Tried(**fields) for fields in communicator.allgather(asdict(found))])
    notes = list(prepared.notes)
    resources = prepared.resources
    if tried.unbatched and resources.privacy is not None:
        raise UserError(
            f"{tried.unbatched}, nor over samples; [privacy] unit = 'sample' needs "
            "another model"
        )
    if tried.unbatched:
        kernel = SerialKernel(resources.kernel.module)
        resources = replace(resources, kernel=kernel)
        notes.append(
            f"{tried.unbatched}; they train one after the other, as with "
            "runtime.lanes = 1"
        )
    elif tried.dependent:
        notes.append(describe_dependent(tried.dependent, prepared.config.runtime.lanes))
    known = replace(prepared, tried=tried, resources=resources, notes=notes)
    return known if resources.privacy is None else calibrate_noise(known)


def run_unless_too_large(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment as ``run`` does where nothing is to be run afterwards.
    Collective.

    Of an experiment whose dry round is too large, only scores and model are tried.
    Raises as ``run`` does.
    """
    is_too_large = dry_round.count_bytes(prepared) > dry_round.TOO_LARGE
    if not communicator.allreduce_max(int(is_too_large)):
        return run(prepared, communicator)
    with one_line_on_all_ranks(communicator):
        try_own_scores(prepared)
        if fault := diagnose_model(prepared):
            refuse(*fault)
    note = (
        f"a round of {prepared.method.name} with this model is too large to be tried "
        "here; a run tries it before round 1"
    )
    return replace(prepared, notes=[*prepared.notes, note])


@contextmanager
def one_line_on_all_ranks(communicator: Communicator) -> Iterator[None]:
    """Raise the first UserError or RunFailure that any rank raises in a block on all
    ranks, with its line. Collective.
    """
    own: UserError | RunFailure | None = None
    facts: list[Any] | None = None
    try:
        yield
    except (UserError, RunFailure) as error:
        own = error
        cause = "".join(traceback.format_exception(error.__cause__ or error))
        facts = [isinstance(error, UserError), str(error), cause]
    failures = [of_rank for of_rank in communicator.allgather(facts) if of_rank]
    if failures:
        is_mistake, text, details = failures[0]
        behind = Elsewhere(details) if own is None else own.__cause__
        raise (UserError if is_mistake else RunFailure)(text) from behind


def calibrate_noise(prepared: Prepared) -> Prepared:
    """Return the experiment with the noise of sample-level privacy, which follows from
    the trainings that the method asks for.
    """
    from hpcfl.updates.sample_level import calibrate

    resources, samples = prepared.resources, prepared.data.sizes
    assert resources.privacy is not None
    trainings = prepared.tried.trainings
    found = calibrate(prepared.config, resources.privacy, trainings, samples)
    return replace(prepared, resources=replace(resources, privacy=found))


def merge(findings: Sequence[Tried]) -> Tried:
    """Return the findings of all ranks as those of one."""
    trainings: list[AskedTraining] = []
    for found in findings:
        of_rank = [AskedTraining(*one) for one in found.trainings]
        # A round may have two trainings alike; ranks ask for the same ones.
        trainings = max(trainings, of_rank, key=len)
    dependent: set[str] = set()
    for found in findings:
        dependent |= set(found.dependent)
    reasons = [found.unbatched for found in findings if found.unbatched]
    uploads = [found.uploads for found in findings if found.uploads]
    return Tried(
        trainings=tuple(trainings),
        dependent=tuple(sorted(dependent)),
        unbatched=reasons[0] if reasons else "",
        uploads=uploads[0] if uploads else (),
    )


def try_alone(prepared: Prepared, lanes: int, error: BaseException) -> Tried:
    """Return what a round with one lane shows after an error with ``lanes`` lanes.

    Only a known limit of batching makes clients train one after the other. Any other
    error ends the run, as does such a limit if the user has set the number of lanes.
    Raises UserError or RunFailure with one line, from the exception behind it.
    """
    alone: BaseException | None = error
    seen = Tried()
    if lanes > 1 and not is_failure(error):
        alone, seen = try_round(prepared, 1)
    if alone is not None:
        require_repetition(prepared, 1, alone)
        refuse(*diagnose(prepared, alone))
    if not is_batching_limit(error):
        require_repetition(prepared, lanes, error)
        text = f"{user_code.describe_error(error)}; set runtime.lanes = 1"
        refuse(place_text(text, user_code.find_line(error)), error)
    unbatched = describe_unbatched(error)
    if prepared.config.runtime.lanes != "auto":
        refuse(f"{unbatched}; set runtime.lanes = 1", error)
    return Tried(unbatched=unbatched, trainings=seen.trainings)


def try_own_scores(prepared: Prepared) -> None:
    """Raise UserError for a score of the user's that fails. The built-in scores are known
    to work.
    """
    scores, device = prepared.resources.scores, prepared.resources.device
    if not any(":" in name for name in scores):
        return
    try:
        score_check.check_scores(scores, prepared.setup.classes, device)
    except Exception as wrong:
        refuse(str(wrong), wrong.__cause__ or wrong)


def require_repetition(prepared: Prepared, lanes: int, error: BaseException) -> None:
    """Raise RunFailure unless an error with at most ``lanes`` lanes occurs again.

    An error that occurs once, such as one that a timer raises, is no mistake.
    """
    if not is_failure(error):
        again, _ = try_round(prepared, lanes)
        if type(again) is type(error):
            return
    raise RunFailure(describe_failure(error)) from error


def refuse(text: str, cause: BaseException) -> NoReturn:
    """Raise the error that ends the run: RunFailure if the machine has failed."""
    if is_failure(cause):
        raise RunFailure(describe_failure(cause)) from cause
    raise UserError(text) from cause


def try_round(prepared: Prepared, lanes: int) -> tuple[BaseException | None, Tried]:
    """Play the round and the final scoring with at most ``lanes`` lanes; return the
    error that ended them, None without one, and what they show. A rank without clients
    plays nothing.

    Errors of the server that occur only because the federation is small are passed
    over.
    """
    if not prepared.store.ids:
        return None, Tried()
    device = prepared.resources.device
    devices = [device] if device.type == "cuda" else []
    trainings: list[AskedTraining] = []
    header: list[list[Any]] = []

    def note_work(stage: str, round: Round) -> None:
        if stage == "work":
            header.extend(exchange.make_header(round.work.message))
            for fleet in round.fleets:
                trainings.extend(fleet.results.trainings)

    try:
        with (
            torch.random.fork_rng(devices),
            warnings.catch_warnings(),
            on_this_rank("before round 1"),
        ):
            warnings.simplefilter("ignore")
            small = dry_round.shrink(prepared, lanes)
            fewer = small.setup.clients < prepared.setup.clients
            with _tolerate_small_federation(fewer, prepared):
                server = small.hooks.initial_state("server_state", small.setup)
                plan = RoundPlan(
                    number=1,
                    cohort=np.array([0]),
                    audience=np.array(small.store.ids),
                    is_scored=True,
                )
                round = Round(plan, OneProcess(), small, server)
                play(round, dry_round.DRY, [note_work, dry_round.release_memory])
                check_scored_column(small, round.collected.numbers.columns)
                del round  # its rows and messages
                play_final_scoring(small, server)
    except RankFailure as failure:
        return failure.__cause__, Tried()
    head = small.resources.head
    dependent = set(small.resources.kernel.dependent)
    if head:
        dependent |= head.kernel.dependent
    return None, Tried(tuple(trainings), tuple(sorted(dependent)), uploads=header)


def play_final_scoring(small: Prepared, server: State) -> None:
    """Play the final scoring of client 0 and of newcomers."""
    plan = RoundPlan(
        number=small.config.rounds + 1,
        cohort=no_clients(),
        audience=np.array([0]),
        is_scored=True,
        newcomers=small.newcomer_ids,
        is_final=True,
    )
    round = Round(plan, OneProcess(), small, server)
    play(round, FINAL_SCORING, [dry_round.release_memory])


@contextmanager
def _tolerate_small_federation(fewer: bool, prepared: Prepared) -> Iterator[None]:
    """Ignore a server error in a block if the small federation may be its cause.

    Without a state for the small federation, that for all clients of the experiment
    ``prepared`` is made, and its error raised if there is one. fewer: whether the
    federation has fewer clients than the experiment.
    """
    try:
        with on_this_rank("before round 1"):
            yield
    except RankFailure as failure:
        cause = failure.__cause__
        excused = fewer or isinstance(cause, EXCUSED)
        if isinstance(cause, UnknownName) or not excused:
            raise
        if cause is None or not dry_round.is_of_server(cause, prepared.hooks):
            raise
        if find_called_hook(cause, prepared.hooks) == "server_state":
            prepared.hooks.initial_state("server_state", prepared.setup)


def check_scored_column(small: Prepared, columns: list[str]) -> None:
    """Raise UserError if ``evaluation.score`` is none of the ``columns`` that a round
    records.

    The method's own may be recorded at the end only.
    """
    wanted, method = small.config.evaluation.score, small.method
    if wanted not in {"method", method.primary, *columns}:
        recorded = ", ".join(sorted(columns))
        raise UserError(
            f"evaluation.score = '{wanted}': {method.name} records {recorded}; "
            f"'method' takes its own, {method.primary}"
        )


def describe_dependent(operators: Sequence[str], lanes: int | str) -> str:
    """Explain that ``operators`` give a client other last bits beside others, for this
    ``runtime.lanes``.
    """
    names = ", ".join(operators)
    if lanes == "auto":
        return (
            f"{names} give a client other last bits beside others; what calls them runs "
            "for one client after the other"
        )
    return (
        f"runtime.lanes = {lanes}: {names} give a client other last bits beside others, so "
        "that results depend on the number of ranks; with 'auto' they do not"
    )
