"""The preflight: a trial of an experiment on a few samples before round 1.

It finds errors in a user's code. It writes no files. It works on copies, which are
discarded, and random numbers are keyed, so a run computes the same with and without it.
Numbers that a method keeps outside of its state break this; ``try_repetition`` refuses
them.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NoReturn

import numpy as np
import torch

from hpcfl.clients.batch_plan import TrainingRequest
from hpcfl.clients.execution import SerialKernel, is_batching_limit
from hpcfl.communication import exchange
from hpcfl.communication.communicator import Communicator, OneProcess, agreed
from hpcfl.errors import RankFailure, RunFailure, UserError
from hpcfl.experiment import plugins, user_code
from hpcfl.experiment.config import Config
from hpcfl.experiment.sections import MostLanes
from hpcfl.methods.base import Method, State
from hpcfl.rows import randomness
from hpcfl.rows.declared import UnknownName
from hpcfl.simulation import dry_round, score_check
from hpcfl.simulation.diagnosis import (
    describe_failure,
    describe_unbatched,
    diagnose,
    diagnose_model,
    is_failure,
)
from hpcfl.simulation.hooks import find_called_hook
from hpcfl.simulation.prepare import Findings, Prepared
from hpcfl.simulation.round import Round, RoundPlan, make_empty_ids, on_this_rank
from hpcfl.simulation.stages import COMPOSE, FINAL_SCORING, SEND, WORK, play

# Errors of hooks that are not reported as errors of the user. In a dry round all
# clients' messages are equal, and a method may fail on such input. Torch documents
# LinAlgError as public, but its annotations do not export it.
EXCUSED = (
    ValueError,
    ArithmeticError,
    AssertionError,
    dry_round.EnoughHeartbeats,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]
)


def run(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment and return it with the findings. Collective call.

    If clients cannot be batched and ``runtime.lanes`` is "auto", the result has one
    lane and a note. Another note names operators whose result for a client depends on
    other clients.

    Raises:
        UserError: The experiment has an error on any rank.
        RunFailure: Any other error occurred on any rank.
    """
    most_lanes = prepared.resources.kernel.widest
    with agreed(communicator, names_rank=False):
        try_own_scores(prepared)
        generators = randomness.read_generators()
        error, found = try_round(prepared, most_lanes)
        if error is not None:
            found = try_one_lane(prepared, most_lanes, error)
        refuse_draws(prepared.method, generators)
        if is_own_method(prepared.config):
            try_repetition(prepared, 1 if found.unbatched else most_lanes)
            try_two_clients(prepared, 1 if found.unbatched else most_lanes)
    findings = merge(communicator.allgather(asdict(found)))
    resources = prepared.resources
    prepared = replace(prepared, findings=findings)
    if findings.is_idle and is_own_method(prepared.config):
        prepared = prepared.add_notes(
            f"method.name = '{prepared.method.name}': the server's step assigned nothing in a "
            "trial of round 1; 'aggregate' of a method assigns server[NAME], and 'aggregate' "
            "of an overlay returns the uplink"
        )
    if findings.unbatched and resources.privacy is not None:
        raise UserError(
            f"{findings.unbatched}, nor over samples; [privacy] unit = 'sample' needs "
            "another model"
        )
    if findings.unbatched:
        kernel = SerialKernel(resources.kernel.module)
        serial = replace(prepared, resources=replace(resources, kernel=kernel))
        return serial.add_notes(
            f"{findings.unbatched}; clients train one at a time, as with runtime.lanes = 1"
        )
    if findings.dependent:
        asked = prepared.config.runtime.lanes
        note = describe_dependent(findings.dependent, asked)
        prepared = prepared.add_notes(note)
    return prepared if resources.privacy is None else calibrate_noise(prepared)


def run_unless_too_large(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment like ``run``, for commands that do not run it. Collective
    call.

    If a dry round would be too large, only scores and model are tried.

    Raises:
        UserError, RunFailure: As for ``run``.
    """
    is_too_large = dry_round.count_bytes(prepared) > dry_round.TOO_LARGE
    if not any(communicator.allgather(is_too_large)):
        return run(prepared, communicator)
    with agreed(communicator, names_rank=False):
        try_own_scores(prepared)
        if fault := diagnose_model(prepared):
            refuse(*fault)
    return prepared.add_notes(
        f"a round of {prepared.method.name} with this model is too large for a trial "
        "here; a run tries it before round 1"
    )


def calibrate_noise(prepared: Prepared) -> Prepared:
    """Return the experiment with the noise of sample-level privacy.

    The noise follows from the local trainings that the method requests.
    """
    from hpcfl.updates.sample_level import calibrate

    resources, samples = prepared.resources, prepared.data.sizes
    assert resources.privacy is not None
    trainings = prepared.findings.trainings
    found = calibrate(prepared.config, resources.privacy, trainings, samples)
    return replace(prepared, resources=replace(resources, privacy=found))


def merge(tables: Sequence[Mapping[str, Any]]) -> Findings:
    """Merge the findings of all ranks.

    Args:
        tables: result of ``asdict`` for each rank, in which JSON has made tuples lists.
    """
    # Ranks request the same trainings, possibly several equal ones.
    longest = max((table["trainings"] for table in tables), key=len)
    dependent, unbatched = set[str](), ""
    upload_kinds: Mapping[str, exchange.Kind] = {}
    for table in tables:
        dependent.update(table["dependent"])
        unbatched = unbatched or table["unbatched"]
        upload_kinds = upload_kinds or table["upload_kinds"]
    return Findings(
        trainings=tuple(TrainingRequest(*one) for one in longest),
        dependent=tuple(sorted(dependent)),
        unbatched=unbatched,
        upload_kinds=upload_kinds,
        is_idle=any(table["is_idle"] for table in tables),
    )


def try_one_lane(prepared: Prepared, most_lanes: int, error: BaseException) -> Findings:
    """Return the findings of a round with one lane, after an error in the first trial.

    Only a known limit of batching makes clients train one at a time. Any other error
    ends the run. So does a limit of batching if the user has set the number of lanes.

    Args:
        prepared: experiment.
        most_lanes: maximum number of lanes of the first trial. With one lane there is
            no further trial.
        error: error of the first trial.

    Raises:
        UserError: The experiment has an error.
        RunFailure: The machine failed, or the error did not occur again.
    """
    remaining_error: BaseException | None = error
    found = Findings()
    if most_lanes > 1 and not is_failure(error):
        remaining_error, found = try_round(prepared, 1)
    if remaining_error is not None:
        require_repetition(prepared, 1, remaining_error)
        refuse(*diagnose(prepared, remaining_error))
    if not is_batching_limit(error):
        require_repetition(prepared, most_lanes, error)
        text = f"{user_code.describe_error(error)}; set runtime.lanes = 1"
        refuse(user_code.locate(error) + text, error)
    unbatched = describe_unbatched(error)
    if prepared.config.runtime.lanes != "auto":
        refuse(f"{unbatched}; set runtime.lanes = 1", error)
    return replace(found, unbatched=unbatched)


def try_own_scores(prepared: Prepared) -> None:
    """Raise UserError if a score of the user fails. Built-in scores are not tried."""
    scores, device = prepared.resources.scores, prepared.resources.device
    if not any(":" in name for name in scores):
        return
    try:
        score_check.check_scores(scores, prepared.setup.classes, device)
    except Exception as wrong:
        refuse(str(wrong), wrong.__cause__ or wrong)


def refuse_draws(method: Method, generators: bytes) -> None:
    """Raise UserError if the trial has drawn random numbers without a key.

    Args:
        method: method of the experiment.
        generators: states of the global generators before the trial.
    """
    if randomness.read_generators() != generators:
        raise UserError(
            f"{user_code.locate(type(method))}method.name = '{method.name}': a hook or a score draws from a "
            "global random generator of torch, numpy or random, so results change with the "
            "ranks and after a resume; use fleet.uniform or context.uniform for clients, and "
            "setup.normal, setup.initial or setup.parameters on the server"
        )


def require_repetition(
    prepared: Prepared, most_lanes: int, error: BaseException
) -> None:
    """Raise RunFailure unless an error occurs again.

    An error that occurs only once, such as an error raised by a timer, is not an error
    of the experiment.

    Args:
        prepared: experiment.
        most_lanes: maximum number of lanes of the trial.
        error: error of the first trial.
    """
    if not is_failure(error):
        again, _ = try_round(prepared, most_lanes)
        if type(again) is type(error):
            return
    raise RunFailure(describe_failure(error)) from error


def refuse(text: str, cause: BaseException) -> NoReturn:
    """Raise the error that ends the run.

    Raises:
        RunFailure: The machine has failed.
        UserError: The experiment has an error.
    """
    if is_failure(cause):
        raise RunFailure(describe_failure(cause)) from cause
    raise UserError(text) from cause


def try_round(
    prepared: Prepared, most_lanes: int
) -> tuple[BaseException | None, Findings]:
    """Play the round and the final scoring with at most ``most_lanes`` lanes.

    A rank without clients does nothing. Errors of the server that occur only because
    the federation is small are ignored.

    Returns:
        The error that ended the trial or None, and the findings.
    """
    if not prepared.store.ids:
        return None, Findings()
    trainings: list[TrainingRequest] = []
    upload_kinds: dict[str, exchange.Kind] = {}
    is_idle = False

    def note_work(stage: str, round: Round) -> None:
        if stage == "work":
            upload_kinds.update(exchange.make_header(round.work.message).kinds)
            for fleet in round.fleets:
                trainings.extend(fleet.results.trainings)

    try:
        with _open_small_federation(prepared, most_lanes) as small:
            round = make_first_round(small)
            server = round.server
            before = dict(server)
            play(round, dry_round.DRY, [note_work, dry_round.release_memory])
            if before and round.uploads is not None:
                is_idle = all(server[name] is before[name] for name in before)
            columns = round.collected.numbers.columns
            del before, round  # frees old tensors, rows and messages
            columns += play_final_scoring(small, server)
            check_scored_column(small, columns)
            if most_lanes > 1 and ":" in prepared.config.model.name:
                dry_round.refuse_other_gradients(small)
            if is_own_method(prepared.config):
                dry_round.refuse_other_messages(small, server)
    except RankFailure as failure:
        return failure.__cause__, Findings()
    head = small.resources.head
    dependent = set(small.resources.kernel.dependent)
    if head:
        dependent |= head.kernel.dependent
    return None, Findings(
        trainings=tuple(trainings),
        dependent=tuple(sorted(dependent)),
        upload_kinds=upload_kinds,
        is_idle=is_idle,
    )


def make_first_round(small: Prepared) -> Round:
    """Return round 1 of a small federation, in which client 0 takes part."""
    plan = RoundPlan(
        number=1,
        cohort=np.array([0]),
        audience=np.array(small.store.ids),
        is_scored=True,
    )
    server = small.hooks.make_initial_state("server_state", small.setup)
    return Round(plan, OneProcess(), small, server)


def is_own_method(config: Config) -> bool:
    """Return whether the method or one of its overlays is the user's own."""
    table = config.resolved()
    parts = {"method": table["method"], "overlay": table.get("overlay")}
    return bool(plugins.find_own_names(parts))


def try_repetition(prepared: Prepared, most_lanes: int) -> None:
    """Refuse a method that has other results if its first round is repeated.

    Such a method keeps numbers outside of ``server`` and ``fleet.state``, or draws
    random numbers without a key. A rank without clients does nothing, and neither does
    a GPU with another precision than "exact".

    Args:
        prepared: experiment.
        most_lanes: maximum number of lanes.

    Raises:
        UserError: The method has such results, or an error in a repetition.
    """
    is_on_cpu = prepared.resources.device.type == "cpu"
    is_exact = is_on_cpu or prepared.config.runtime.precision == "exact"
    if not prepared.store.ids or not is_exact:
        return
    found = []
    for _ in range(2):
        try:
            with _open_small_federation(prepared, most_lanes) as small:
                round = make_first_round(small)
                play(round, dry_round.DRY, [dry_round.release_memory])
                found.append(dry_round.list_results(round))
        except RankFailure as failure:
            assert failure.__cause__ is not None
            refuse(*diagnose(prepared, failure.__cause__))
    if len(found) < 2:  # an error of the server that the small federation explains
        return
    first, second = found
    for name, tensor in first.items():
        if not dry_round.is_close(tensor, second.get(name), tolerance=0.0):
            method = prepared.method
            raise UserError(
                f"{user_code.locate(type(method))}method.name = '{method.name}': the {name} "
                "changes if the first round is repeated, so results change after a resume: a "
                "hook keeps numbers outside of 'server' and 'fleet.state', or draws random "
                "numbers without a key"
            )


def try_two_clients(prepared: Prepared, most_lanes: int) -> None:
    """Refuse a method whose results for a client depend on other clients of its rank.

    The number of ranks would then change the results. Two clients are played in one
    call of the method's hooks, and in a call for each. A rank with one client, or with
    a GPU that holds the rows of one client, does nothing, and neither does a GPU with
    another precision than "exact", whose rounding would look like a dependence.

    Args:
        prepared: experiment.
        most_lanes: maximum number of lanes.

    Raises:
        UserError: The method has such results, or an error with two clients.
    """
    if min(prepared.resources.clients_on_device, len(prepared.store.ids)) < 2:
        return
    is_on_cpu = prepared.resources.device.type == "cpu"
    if not is_on_cpu and prepared.config.runtime.precision != "exact":
        return
    tolerance = 1e-5 if is_on_cpu else 1e-3
    results = []
    try:
        with _open_small_federation(prepared, most_lanes) as small:
            cohort = np.array(small.store.ids)
            plan = RoundPlan(number=1, cohort=cohort, audience=cohort, is_scored=True)
            for most in (len(cohort), 1):
                resources = replace(small.resources, clients_on_device=most)
                federation = replace(small, resources=resources)
                server = small.hooks.make_initial_state("server_state", small.setup)
                round = Round(plan, OneProcess(), federation, server)
                play(round, (COMPOSE, SEND, WORK), [dry_round.release_memory])
                results.append(dry_round.list_results(round))
            together, apart = results
            dry_round.refuse_other_results(together, apart, tolerance)
    except RankFailure as failure:
        assert failure.__cause__ is not None
        refuse(*diagnose(prepared, failure.__cause__))


def play_final_scoring(small: Prepared, server: State) -> list[str]:
    """Play the final scoring of client 0 and of the newcomers, and return the columns
    that it records.
    """
    plan = RoundPlan(
        number=small.config.rounds + 1,
        cohort=make_empty_ids(),
        audience=np.array([0]),
        is_scored=True,
        newcomers=small.newcomer_ids,
        is_final=True,
    )
    round = Round(plan, OneProcess(), small, server)
    play(round, FINAL_SCORING, [dry_round.release_memory])
    return round.collected.numbers.columns


@contextmanager
def _open_small_federation(prepared: Prepared, most_lanes: int) -> Iterator[Prepared]:
    """Open a block that tries the experiment with few clients and samples.

    Warnings are silent in it. An error of the server is ignored if the small federation
    may be its cause. If the hook ``server_state`` failed, it is called again for all
    clients of the experiment, and raises its error there, if any.

    Args:
        prepared: experiment with all clients.
        most_lanes: maximum number of lanes.

    Raises:
        RankFailure: An error in the block, which is its cause.
    """
    with warnings.catch_warnings(), on_this_rank("before round 1"):
        warnings.simplefilter("ignore")
        small = dry_round.shrink(prepared, most_lanes)
        try:
            with on_this_rank("before round 1"):
                yield small
        except RankFailure as failure:
            cause = failure.__cause__
            has_fewer_clients = small.setup.clients < prepared.setup.clients
            excused = has_fewer_clients or isinstance(cause, EXCUSED)
            if isinstance(cause, UnknownName) or not excused:
                raise
            if cause is None or not dry_round.is_of_server(cause, prepared.hooks):
                raise
            if find_called_hook(cause, prepared.hooks) == "server_state":
                prepared.hooks.make_initial_state("server_state", prepared.setup)


def check_scored_column(small: Prepared, columns: list[str]) -> None:
    """Raise UserError if no round records ``evaluation.score``, or the method's primary
    column that it selects.

    Args:
        small: experiment of the trial.
        columns: columns that a round and the final scoring record.
    """
    wanted, method = small.config.evaluation.score, small.method
    recorded = ", ".join(sorted({*columns}))
    if wanted not in {"method", method.primary, *columns}:
        raise UserError(
            f"evaluation.score = '{wanted}': {method.name} records {recorded}; "
            f"'method' selects its primary column, {method.primary}"
        )
    if wanted in ("method", method.primary) and method.primary not in columns:
        raise UserError(
            f"{user_code.locate(type(method))}primary = '{method.primary}' of {method.name} "
            f"is not scored; it records {recorded}"
        )


def describe_dependent(operators: Sequence[str], asked: MostLanes) -> str:
    """Return a note that the bits of ``operators`` depend on other clients.

    Args:
        operators: names of the operators.
        asked: value of ``runtime.lanes``.
    """
    names = ", ".join(operators)
    if asked == "auto":
        return (
            f"{names} compute last bits that depend on other clients in the batch; code that "
            "calls them runs for one client at a time"
        )
    return (
        f"runtime.lanes = {asked}: {names} compute last bits that depend on other clients in the "
        "batch, so results depend on the number of ranks; with 'auto' they do not"
    )
