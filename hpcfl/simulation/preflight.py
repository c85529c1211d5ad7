"""The preflight: an experiment tried on a few samples before round 1, to find mistakes
in a user's own code.

Nothing is written. All that it changes is made for it and thrown away, and random
numbers are keyed: a run computes the same with and without it.
"""

import traceback
from dataclasses import asdict, dataclass, replace

from hpcfl.clients.batch_plan import AskedTraining
from hpcfl.clients.execution import SerialKernel, is_batching_limit
from hpcfl.communication.communicator import Communicator
from hpcfl.errors import RunFailure, UserError, is_shortage
from hpcfl.simulation import diagnosis, dry_round, score_check
from hpcfl.simulation.diagnosis import Diagnosis
from hpcfl.simulation.prepare import Prepared, Tried


@dataclass(frozen=True)
class Verdict:
    """Findings of the preflight on a rank; a field is empty where there are none.

    mistake: one line on the error that ends the run.
    details: the traceback of the error.
    failed: whether the machine has failed and the experiment may be right.
    unbatched: one line on what runs for one client but cannot be batched over several.
    dependent: operators that were called and give clients side by side other bits on a
        CPU.
    trainings: the local trainings that the method asks for in a round.
    """

    mistake: str = ""
    details: str = ""
    failed: bool = False
    unbatched: str = ""
    dependent: tuple[str, ...] = ()
    trainings: tuple[AskedTraining, ...] = ()


class Elsewhere(Exception):
    """The cause of a mistake on another rank; its text is the traceback there."""


def run(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment and return it as it can run. Collective.

    Raises UserError for a mistake on any rank and RunFailure for any other error, with
    the same line on all ranks.
    """
    verdict, cause = judge(prepared)
    return _adapted(prepared, communicator, verdict, cause)


def _adapted(
    prepared: Prepared,
    communicator: Communicator,
    verdict: Verdict,
    cause: BaseException | None,
) -> Prepared:
    """Return the experiment as it can run by the verdicts of all ranks. Collective.

    If clients cannot be batched and ``runtime.lanes`` is "auto", it has one lane and a
    note. Another note names operators whose result for a client depends on the clients
    beside it. Raises UserError or RunFailure.
    """
    verdicts = [Verdict(**fields) for fields in communicator.allgather(asdict(verdict))]
    for mistaken in verdicts:
        if mistaken.mistake:
            cause = cause or Elsewhere(mistaken.details)
            kind = RunFailure if mistaken.failed else UserError
            raise kind(mistaken.mistake) from cause
    found = [AskedTraining(*one) for other in verdicts for one in other.trainings]
    trainings = dict.fromkeys(found)  # each once
    prepared = replace(prepared, tried=Tried(tuple(trainings)))
    for other in verdicts:
        if other.unbatched:
            return one_lane(prepared, other.unbatched)
    dependent = {name for other in verdicts for name in other.dependent}
    if not dependent:
        return prepared
    note = diagnosis.describe_dependent(
        sorted(dependent), prepared.config.runtime.lanes
    )
    return replace(prepared, notes=[*prepared.notes, note])


def one_lane(prepared: Prepared, why: str) -> Prepared:
    """Return the experiment with clients that train one after the other, and add a
    note.
    """
    kernel = SerialKernel(prepared.resources.kernel.module)
    resources = replace(prepared.resources, kernel=kernel)
    note = f"{why}; they train one after the other, as with runtime.lanes = 1"
    notes = [*prepared.notes, note]
    tried = replace(prepared.tried, unbatched=True)
    return replace(prepared, resources=resources, notes=notes, tried=tried)


def judge(prepared: Prepared) -> tuple[Verdict, BaseException | None]:
    """Return this rank's verdict, and the exception behind a mistake.

    Only a known limit of batching makes clients train one after the other. Any other
    error ends the run, as does such a limit if the user has set the number of lanes.
    """
    resources = prepared.resources
    wrong_score = score_check.diagnose(
        resources.scores, prepared.setup.classes, resources.device
    )
    if wrong_score is not None:
        return _mistaken(wrong_score)
    if not prepared.store.ids:
        return Verdict(), None
    lanes = resources.kernel.widest
    error, tried = dry_round.try_round(prepared, lanes)
    if error is None:
        dependent = tuple(sorted(tried.dependent))
        return Verdict(dependent=dependent, trainings=tried.trainings), None
    if _is_failure(error):
        return _failed(error)
    with_one_lane: BaseException | None = error
    if lanes > 1:
        with_one_lane, tried = dry_round.try_round(prepared, 1)
    if with_one_lane is not None:
        return _confirmed(prepared, 1, with_one_lane)
    if not is_batching_limit(error):
        return _confirmed(prepared, lanes, error)
    if prepared.config.runtime.lanes == "auto":
        unbatched = diagnosis.describe_unbatched(error)
        return Verdict(unbatched=unbatched, trainings=tried.trainings), None
    return _mistaken(diagnosis.diagnose_lanes(error))


def _confirmed(
    prepared: Prepared, lanes: int, error: BaseException
) -> tuple[Verdict, BaseException | None]:
    """Return the verdict on an error with at most ``lanes`` lanes.

    The user has made a mistake if the error occurs again. An error that occurs once,
    such as one that a timer raises, is a failure.
    """
    if _is_failure(error):
        return _failed(error)
    again = dry_round.try_round(prepared, lanes)[0]
    if type(again) is not type(error):
        return _failed(error)
    if lanes == 1:
        return _mistaken(diagnosis.diagnose_mistake(prepared, error))
    return _mistaken(diagnosis.diagnose_side_by_side(error))


def _is_failure(error: BaseException | None) -> bool:
    """Return whether the machine, and not the experiment, is the cause of an error."""
    return isinstance(error, RunFailure) or is_shortage(error)


def _failed(error: BaseException) -> tuple[Verdict, BaseException | None]:
    """Return the verdict on a failure, and its cause."""
    return _ending(diagnosis.diagnose_failure(error), failed=True)


def _mistaken(mistake: Diagnosis) -> tuple[Verdict, BaseException | None]:
    """Return the verdict on a mistake, and its cause."""
    _, cause = mistake
    if cause is not None and _is_failure(cause):
        return _failed(cause)
    return _ending(mistake, failed=False)


def _ending(found: Diagnosis, failed: bool) -> tuple[Verdict, BaseException | None]:
    """Return the verdict on an error that ends the run, and its cause."""
    line, cause = found
    details = "".join(traceback.format_exception(cause))
    return Verdict(line, details, failed), cause
