"""The preflight: an experiment tried on a few samples before round 1, to find mistakes
in a user's own code.

Nothing is written. All that it changes is made for it and thrown away, and random
numbers are keyed: a run computes the same with and without it.
"""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from hpcfl.clients.batch_plan import AskedTraining, fewest_samples
from hpcfl.clients.execution import SerialKernel, is_batching_limit
from hpcfl.communication.communicator import Communicator
from hpcfl.errors import RunFailure, UserError, is_shortage
from hpcfl.experiment import plugins, user_code
from hpcfl.models import usable
from hpcfl.rows import randomness
from hpcfl.rows.declared import UnknownName
from hpcfl.simulation import dry_round, score_check
from hpcfl.simulation.hooks import Hooks, MessageError, find_called_hook, find_hooks
from hpcfl.simulation.prepare import Prepared, Tried
from hpcfl.simulation.round_schedule import RoundSchedule

TRAINING = "clients train"
ONE_BY_ONE = "one after the other"
SIDE_BY_SIDE = "side by side"
GRADIENT = 6  # operations of a sample's gradient for each parameter of a linear layer
# Operations of a round below which a server and two workers take longer than one process:
# with 20 clients and a hidden layer of 64 they did at 0.4 billion, and no longer at 1.5.
SHORT_ROUND = 5e8


@dataclass(frozen=True)
class Verdict(Tried):
    """Findings of the preflight on a rank; a field is empty where there are none.

    mistake: one line on the error that ends the run.
    details: the traceback of the error.
    failed: whether the machine has failed and the experiment may be right.
    """

    mistake: str = ""
    details: str = ""
    failed: bool = False


Judged = tuple[Verdict, BaseException | None]  # with the exception behind a mistake


class Elsewhere(Exception):
    """The cause of a mistake on another rank; its text is the traceback there."""


def run(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment and return it as it can run. Collective.

    If clients cannot be batched and ``runtime.lanes`` is "auto", it has one lane and a
    note. Another note names operators whose result for a client depends on the clients
    beside it. Raises UserError for a mistake on any rank and RunFailure for any other
    error, with the same line on all ranks.
    """
    judged = try_own_scores(prepared)
    if judged is None:
        error, seen = None, Tried()
        if prepared.store.ids:
            widest = prepared.resources.kernel.widest
            error, seen = dry_round.try_round(prepared, widest)
        judged = judge(prepared, error, seen)
    verdict, cause = judged
    verdicts = [Verdict(**fields) for fields in communicator.allgather(asdict(verdict))]
    for mistaken in verdicts:
        if mistaken.mistake:
            cause = cause or Elsewhere(mistaken.details)
            kind = RunFailure if mistaken.failed else UserError
            raise kind(mistaken.mistake) from cause
    tried = merge(verdicts)
    notes, resources = list(prepared.notes), prepared.resources
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
        lanes = prepared.config.runtime.lanes
        notes.append(describe_dependent(tried.dependent, lanes))
    found = replace(prepared, tried=tried, resources=resources, notes=notes)
    return found if resources.privacy is None else calibrate_noise(found)


def calibrate_noise(prepared: Prepared) -> Prepared:
    """Return the experiment with the noise of sample-level privacy, which follows from
    the trainings that the method asks for.
    """
    from hpcfl.updates.sample_level import calibrate

    resources, samples = prepared.resources, count_samples(prepared)
    assert resources.privacy is not None
    trainings = prepared.tried.trainings
    found = calibrate(prepared.config, resources.privacy, trainings, samples)
    return replace(prepared, resources=replace(resources, privacy=found))


def count_samples(prepared: Prepared) -> np.ndarray:
    """Return the training samples of clients and newcomers, int64 [clients and
    newcomers].
    """
    counts: np.ndarray = prepared.data.counts.sum(dim=1).long().numpy()
    return counts


def merge(verdicts: Sequence[Verdict]) -> Tried:
    """Return the findings of all ranks as those of one."""
    trainings: list[AskedTraining] = []
    for verdict in verdicts:
        of_rank = [AskedTraining(*one) for one in verdict.trainings]
        # A round may have two trainings alike; ranks ask for the same ones.
        trainings = max(trainings, of_rank, key=len)
    dependent: set[str] = set()
    for verdict in verdicts:
        dependent |= set(verdict.dependent)
    reasons = [verdict.unbatched for verdict in verdicts if verdict.unbatched]
    uploads = [verdict.uploads for verdict in verdicts if verdict.uploads]
    return Tried(
        trainings=tuple(trainings),
        dependent=tuple(sorted(dependent)),
        unbatched=reasons[0] if reasons else "",
        uploads=uploads[0] if uploads else (),
    )


def try_own_scores(prepared: Prepared) -> Judged | None:
    """Return the verdict on a score of the user's that fails; None without one.

    The built-in scores are known to work.
    """
    scores, device = prepared.resources.scores, prepared.resources.device
    if not any(":" in name for name in scores):
        return None
    try:
        score_check.check_scores(scores, prepared.setup.classes, device)
    except Exception as wrong:
        return end(wrong.__cause__ or wrong, str(wrong))
    return None


def judge(prepared: Prepared, error: BaseException | None, seen: Tried) -> Judged:
    """Return this rank's verdict on the tried round.

    Only a known limit of batching makes clients train one after the other. Any other
    error ends the run, as does such a limit if the user has set the number of lanes.

    Args:
        error: of the round; None if it was played.
        seen: what the round showed.
    """
    if error is None:
        return Verdict(**vars(seen)), None
    lanes = prepared.resources.kernel.widest
    alone: BaseException | None = error
    if lanes > 1 and not is_failure(error):
        alone, seen = dry_round.try_round(prepared, 1)
    if alone is not None:
        return end_if_repeated(prepared, 1, alone, *diagnose(prepared, alone))
    if not is_batching_limit(error):
        text = f"{user_code.describe_error(error)}; set runtime.lanes = 1"
        placed = place_text(text, user_code.find_line(error))
        return end_if_repeated(prepared, lanes, error, placed, error)
    unbatched = describe_unbatched(error)
    if prepared.config.runtime.lanes == "auto":
        return Verdict(unbatched=unbatched, trainings=seen.trainings), None
    return end(error, f"{unbatched}; set runtime.lanes = 1")


def end_if_repeated(
    prepared: Prepared,
    lanes: int,
    error: BaseException,
    text: str,
    cause: BaseException,
) -> Judged:
    """Return the verdict on an error with at most ``lanes`` lanes.

    The user has made a mistake if the error occurs again. An error that occurs once,
    such as one that a timer raises, is a failure.
    """
    if not is_failure(error):
        again, _ = dry_round.try_round(prepared, lanes)
        if type(again) is type(error):
            return end(cause, text)
    return end(error, describe_failure(error), failed=True)


def end(cause: BaseException, text: str, failed: bool = False) -> Judged:
    """Return the verdict on an error that ends the run."""
    if is_failure(cause):
        text, failed = describe_failure(cause), True
    details = "".join(traceback.format_exception(cause))
    return Verdict(mistake=text, details=details, failed=failed), cause


def is_failure(error: BaseException) -> bool:
    """Return whether the machine, and not the experiment, is the cause of an error."""
    return isinstance(error, RunFailure) or is_shortage(error)


def describe_failure(error: BaseException) -> str:
    """Describe a failure of the machine, or an error that occurred once."""
    if isinstance(error, RunFailure):
        return str(error)
    return f"the trial before round 1 failed: {user_code.describe_error(error)}"


def diagnose(prepared: Prepared, error: BaseException) -> tuple[str, BaseException]:
    """Return one line on the model if it fails by itself, else on the method, and the
    exception behind it.

    The place is the innermost line of the user's code in the traceback. Without such a
    line it is the first user definition among hook, method and model.
    """
    if is_failure(error):
        return "", error
    of_model = diagnose_model(prepared)
    if of_model is not None:
        return of_model
    place = user_code.find_line(error)
    known = isinstance(error, UserError)
    if known and not isinstance(error, UnknownName):
        return place_text(str(error), place), error
    name = f"method.name = '{prepared.method.name}'"
    hook, method = find_hook(error, prepared.hooks), type(prepared.method)
    for suspect in (getattr(method, hook, None), method, find_model_plugin(prepared)):
        place = place or user_code.find_definition(suspect)
    if isinstance(error, MessageError | UnknownName):
        return place_text(f"{name}: {error}", place), error
    where = f" in '{hook}'" if hook else ""
    text = f"{name} fails{where}: {user_code.describe_error(error)}"
    return place_text(text, place), error


def find_hook(error: BaseException, hooks: Hooks) -> str:
    """Return the outermost function of the user's method or overlay in which an error
    was raised, or else the hook that was called; "" for none.
    """
    for name, file in find_hooks(error, hooks):
        if user_code.is_own(file):
            return name
    return find_called_hook(error, hooks)


def diagnose_model(prepared: Prepared) -> tuple[str, BaseException] | None:
    """Return the fault of the model on a few samples, in evaluation mode and on a batch
    in training mode; None for a model that runs.
    """
    samples, name = prepared.resources.samples, prepared.config.model.name
    few = dry_round.SAMPLES
    batch = min(few, prepared.config.training.batch_size)
    for training, count in (False, few), (True, batch):
        x, _ = samples.take(np.arange(min(count, len(samples.y))))
        try:
            with randomness.seeded(prepared.config.seed, "diagnosis"):
                module = prepared.setup.build().to(samples.device).train(training)
                output = module(x)
            check_output(output, len(x), prepared.setup.classes)
        except Exception as error:
            plugin = find_model_plugin(prepared)
            return str(usable.explained(error, name, plugin, x)), error
    return None


def check_output(output: object, samples: int, classes: int) -> None:
    """Raise TypeError unless a model's output has a row for each sample and a column
    for each class.
    """
    given = f"a {type(output).__name__}"
    if isinstance(output, Tensor):
        given = "×".join(map(str, output.shape))
        if output.dim() == 2:
            rows, columns = output.shape
            if rows == samples and columns >= classes:
                return
    raise TypeError(
        f"gives {given}; expected {samples}×{classes}, an output for each of "
        f"{classes} classes"
    )


def find_model_plugin(prepared: Prepared) -> object:
    """Return the class or function that makes the model."""
    return plugins.find("hpcfl.models", "model.name", prepared.config.model.name)


def place_text(text: str, place: str | None) -> str:
    """Put the known ``file:line`` before a text."""
    return f"{place}: {text}" if place else text


def describe_unbatched(error: BaseException) -> str:
    """Say where and why clients cannot be batched, as one line."""
    place = user_code.find_line(error) or "model or method"
    first_sentence = user_code.describe_error(error).partition(". ")[0]
    return f"{place}: cannot be batched over clients ({first_sentence})"


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


def add_notes(prepared: Prepared, schedule: RoundSchedule) -> Prepared:
    """Return the experiment with notes on idle clients and on short rounds. Raises
    UserError where no client ever takes a step.
    """
    return note_short_rounds(note_idle_clients(prepared, schedule))


def note_idle_clients(prepared: Prepared, schedule: RoundSchedule) -> Prepared:
    """Return the experiment with notes on clients that never take a step.

    Raises UserError where no client ever does. A method that asks for no training is
    left alone.
    """
    if not prepared.tried.trainings:
        return prepared
    clients, rounds = prepared.setup.clients, prepared.config.rounds
    steps = find_stepping(prepared)
    present = find_participants(prepared, schedule)
    if not present.any():
        raise UserError(
            f"no client takes part in any of the {rounds} rounds: raise "
            "participation.fraction or time.deadline, or lower time.least"
        )
    if not (steps[:clients] & present).any():
        raise UserError(f"no client ever takes a step: {explain_idleness(prepared)}")
    notes = []
    if few := clients - int(steps[:clients].sum()):
        notes.append(
            f"{few} of {clients} clients never take a step: {explain_idleness(prepared)}"
        )
    if absent := clients - int(present.sum()):
        notes.append(
            f"{absent} of {clients} clients never train: they take part in none of the "
            f"{rounds} rounds"
        )
    newcomers = steps[clients:]
    if prepared.config.newcomers.epochs and (few := int((~newcomers).sum())):
        notes.append(
            f"{few} of {len(newcomers)} newcomers take no step: "
            f"{explain_idleness(prepared)}"
        )
    return replace(prepared, notes=[*prepared.notes, *notes])


def note_short_rounds(prepared: Prepared) -> Prepared:
    """Return the experiment with a note where its rounds are so short that one process
    is faster than ranks on CPUs, which wait for each other in every round.

    Only models of linear layers are judged, whose operations follow from their size.
    """
    on_gpu = prepared.resources.device.type == "cuda"
    if prepared.placement.size == 1 or on_gpu:
        return prepared
    for part in prepared.resources.kernel.module.modules():
        has_parameters = any(True for _ in part.parameters(recurse=False))
        if has_parameters and not isinstance(part, nn.Linear):
            return prepared
    setup = prepared.setup
    cohort = prepared.config.participation.count(setup.clients)
    samples = cohort * float(setup.samples.sum()) / setup.clients
    epochs = sum(asked.epochs * asked.share for asked in prepared.tried.trainings)
    operations = GRADIENT * setup.layout.width * samples * epochs
    if operations > SHORT_ROUND:
        return prepared
    note = (
        f"a round has about {operations / 1e9:.1g} billion operations, so few that "
        "one process is faster than several ranks; start it without mpiexec or srun"
    )
    return replace(prepared, notes=[*prepared.notes, note])


def find_stepping(prepared: Prepared) -> np.ndarray:
    """Return which clients and newcomers have enough samples for a step, bool [clients
    and newcomers].
    """
    training = prepared.setup.training
    fewest = fewest_samples(training, prepared.resources.buffers.width > 0)
    samples = count_samples(prepared)
    distinct, position = np.unique(samples, return_inverse=True)
    enough = []
    for count in distinct.tolist():
        takes_step = [
            asked.takes_step(count, training.batch_size, fewest)
            for asked in prepared.tried.trainings
        ]
        enough.append(any(takes_step))
    found: np.ndarray = np.array(enough)[position]
    return found


def find_participants(prepared: Prepared, schedule: RoundSchedule) -> np.ndarray:
    """Return which clients train in some round, bool [clients].

    All of them count where the losses of earlier rounds decide.
    """
    found = np.zeros(prepared.setup.clients, bool)
    if schedule.reports is not None:
        return ~found
    for number in range(1, prepared.config.rounds + 1):
        found[schedule.cohort(number)] = True
        if found.all():
            break
    return found


def explain_idleness(prepared: Prepared) -> str:
    """Return why a client takes no step, with the values that decide it."""
    trainings, training = prepared.tried.trainings, prepared.setup.training
    name = prepared.method.name
    if not any(asked.epochs for asked in trainings):
        return f"method.name = '{name}' trains for 0 epochs"
    batches = min(asked.batches for asked in trainings)
    most = int(prepared.data.counts.sum(dim=1).max())
    return (
        f"too few training samples for a step, which takes {batches} batches with "
        f"training.batch_size = {training.batch_size} and training.drop_last = "
        f"{str(training.drop_last).lower()}; the largest client has {most} training "
        "samples"
    )


def describe_decisions(prepared: Prepared, schedule: RoundSchedule) -> dict[str, Any]:
    """Return the decisions of the preflight that change the last bits of a run, by subject.

    Every checkpoint stores them. ``asked`` has the settings that they depend on.
    """
    resources, config = prepared.resources, prepared.config
    of_overlays: dict[str, str] = {}
    for overlay in prepared.hooks.overlays:
        of_overlays |= overlay.list_decisions()
    if resources.privacy is not None and config.needs_rounds:
        from hpcfl.updates.sample_level import describe_noise

        of_overlays |= describe_noise(resources.privacy)
    return {
        "asked": [resources.device.type, config.runtime.lanes],
        TRAINING: ONE_BY_ONE if prepared.tried.unbatched else SIDE_BY_SIDE,
        **schedule.decisions(),
        **of_overlays,
    }


def refuse_other_decisions(
    prepared: Prepared,
    schedule: RoundSchedule,
    meta: Mapping[str, Any],
    folder: Path,
) -> None:
    """Raise UserError if a run would continue with other decisions than it began with.

    A run of an earlier version stored none. If the device or ``runtime.lanes`` is
    another one, the user has asked for other decisions.

    meta: the entries of a checkpoint of the run in ``folder``.
    """
    for change in list_changed_decisions(
        meta.get("decisions"), describe_decisions(prepared, schedule)
    ):
        raise UserError(
            f"{folder}: {change} when the run began; put back the code and the versions of "
            "packages that it began with, or choose another --out or --fresh"
        )


def list_changed_decisions(before: object, now: object) -> list[str]:
    """Return a text for each decision that differs between two starts with the same
    settings.
    """
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return []
    if before.get("asked") != now.get("asked"):
        return []
    return [
        f"{subject} {decision} now, and {before[subject]}"
        for subject, decision in now.items()
        if before.get(subject, decision) != decision
    ]
