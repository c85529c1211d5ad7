"""The preflight: an experiment tried on a few samples before round 1, to find mistakes
in a user's own code.

Nothing is written. All that it changes is made for it and thrown away, and random
numbers are keyed: a run computes the same with and without it.
"""

import traceback
import warnings
from dataclasses import asdict, dataclass, replace

import torch

from hpcfl.clients.batch_plan import AskedTraining
from hpcfl.clients.execution import SerialKernel
from hpcfl.communication.communicator import Communicator
from hpcfl.errors import RankFailure, UserError
from hpcfl.simulation import diagnosis, dry_round, score_check
from hpcfl.simulation.diagnosis import Diagnosis
from hpcfl.simulation.dry_round import Tried
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.timing import timed


@dataclass(frozen=True)
class Verdict:
    """What the preflight showed on a rank; a field is empty where it has nothing to say.

    mistake: one line on what cannot run.
    details: the traceback of the mistake.
    unbatched: one line on what runs for one client but cannot be batched over several.
    dependent: operators that were called and give clients side by side other bits on a
        CPU.
    trainings: the local trainings that the method asks for in a round.
    """

    mistake: str = ""
    details: str = ""
    unbatched: str = ""
    dependent: tuple[str, ...] = ()
    trainings: tuple[AskedTraining, ...] = ()


class Elsewhere(Exception):
    """The cause of a mistake on another rank; its text is the traceback there."""


def run(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment and return it as it can run, with the calendar of its rounds
    if it has ``[time]``. Collective. Raises UserError, the same on all ranks.
    """
    return timed(_tried(prepared, communicator), communicator)


def _tried(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment and return it as it can run. Collective.

    If clients cannot be batched and ``runtime.lanes`` is "auto", that is with one lane
    and a note. Another note says what gives clients side by side other bits. Raises
    UserError for a mistake on any rank, with the same line on all ranks.
    """
    verdict, cause = judge(prepared)
    verdicts = [Verdict(**fields) for fields in communicator.allgather(asdict(verdict))]
    for mistaken in verdicts:
        if mistaken.mistake:
            cause = cause or Elsewhere(mistaken.details)
            raise UserError(mistaken.mistake) from cause
    found = [AskedTraining(*one) for other in verdicts for one in other.trainings]
    trainings = dict.fromkeys(found)  # each once
    prepared = replace(prepared, trainings=tuple(trainings))
    for other in verdicts:
        if other.unbatched:
            return one_lane(prepared, other.unbatched)
    dependent = {name for other in verdicts for name in other.dependent}
    if not dependent:
        return prepared
    note = diagnosis.of_dependent(sorted(dependent), prepared.config.runtime.lanes)
    return replace(prepared, notes=[*prepared.notes, note])


def one_lane(prepared: Prepared, why: str) -> Prepared:
    """The experiment with clients that train one after the other, and a note why."""
    kernel = SerialKernel(prepared.resources.kernel.module)
    resources = replace(prepared.resources, kernel=kernel)
    note = f"{why}; they train one after the other, as with runtime.lanes = 1"
    return replace(prepared, resources=resources, notes=[*prepared.notes, note])


def judge(prepared: Prepared) -> tuple[Verdict, BaseException | None]:
    """This rank's verdict, and the exception behind a mistake.

    What fails with several lanes but not with one cannot be batched. That is a mistake,
    too, if the user has set the number of lanes.
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
    error, tried = attempt(prepared, lanes)
    if error is None:
        dependent = tuple(sorted(tried.dependent))
        return Verdict(dependent=dependent, trainings=tried.trainings), None
    with_one_lane: BaseException | None = error
    if lanes > 1:
        with_one_lane, tried = attempt(prepared, 1)
    if with_one_lane is not None:
        return _mistaken(diagnosis.of_mistake(prepared, with_one_lane))
    if prepared.config.runtime.lanes == "auto":
        unbatched = diagnosis.of_unbatched(error)
        return Verdict(unbatched=unbatched, trainings=tried.trainings), None
    return _mistaken(diagnosis.of_lanes(error))


def _mistaken(mistake: Diagnosis) -> tuple[Verdict, BaseException | None]:
    """The verdict on a mistake, and its cause."""
    line, cause = mistake
    details = "".join(traceback.format_exception(cause))
    return Verdict(line, details), cause


def attempt(prepared: Prepared, lanes: int) -> tuple[BaseException | None, Tried]:
    """Return how the dry round fails with at most ``lanes`` lanes, None if it does not,
    and what ``dry_round.play`` returns.
    """
    device = prepared.resources.device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return None, dry_round.play(prepared, lanes)
        except RankFailure as failure:
            return failure.__cause__, Tried()
