"""The experiment tried on two samples of one client before round 1, to find mistakes in
a user's own code.

Nothing is written. All that a trial changes is made for it and thrown away, and random
numbers are keyed: a run computes the same with and without it.
"""

import traceback
import warnings
from dataclasses import asdict, dataclass, replace

import torch

from hpcfl.communication.communicator import Communicator
from hpcfl.errors import UserError
from hpcfl.fleet.execution import SerialKernel
from hpcfl.preparation.prepare import Prepared
from hpcfl.trial import diagnosis, imitation, measuring
from hpcfl.trial.failure import Failure


@dataclass(frozen=True)
class Verdict:
    """What the trial showed on a rank; a field is empty where it has nothing to say."""

    mistake: str = ""  # one line: what cannot run
    details: str = ""  # the traceback of the mistake
    unbatched: str = (
        ""  # one line: what runs for one client but cannot be batched over several
    )
    # operators that were called and give clients side by side other bits on a CPU
    dependent: tuple[str, ...] = ()


class Elsewhere(Exception):
    """The cause of a mistake on another rank; its text is the traceback there."""


def run(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Try the experiment and return it as it can run. Collective.

    If clients cannot be batched and ``runtime.lanes`` is "auto", that is with one lane
    and a note. Another note says what gives clients side by side other bits. Raises
    UserError for a mistake on any rank, with the same line on all ranks.
    """
    verdict, cause = judge(prepared)
    verdicts = [Verdict(**fields) for fields in communicator.allgather(asdict(verdict))]
    if mistaken := next((verdict for verdict in verdicts if verdict.mistake), None):
        raise UserError(mistaken.mistake) from (cause or Elsewhere(mistaken.details))
    if unbatched := next(
        (verdict.unbatched for verdict in verdicts if verdict.unbatched), None
    ):
        resources = replace(
            prepared.resources, kernel=SerialKernel(prepared.resources.kernel.module)
        )
        note = f"{unbatched}; they train one after the other, as with runtime.lanes = 1"
        return replace(prepared, resources=resources, notes=[*prepared.notes, note])
    dependent = sorted({name for verdict in verdicts for name in verdict.dependent})
    if dependent:
        note = diagnosis.of_dependent(dependent, prepared.config.runtime.lanes)
        return replace(prepared, notes=[*prepared.notes, note])
    return prepared


def judge(prepared: Prepared) -> tuple[Verdict, BaseException | None]:
    """This rank's verdict, and the exception behind a mistake.

    What fails with several lanes but not with one cannot be batched. That is a mistake,
    too, if the user has set the number of lanes.
    """
    resources = prepared.resources
    wrong_score = measuring.diagnose(
        resources.scores, prepared.setup.classes, resources.device
    )
    if wrong_score is not None:
        return _mistaken(*wrong_score)
    lanes = resources.kernel.widest
    if not prepared.store.ids:
        return Verdict(), None
    failure, dependent = attempt(prepared, lanes)
    if failure is None:
        return Verdict(dependent=tuple(sorted(dependent))), None
    alone = failure if lanes == 1 else attempt(prepared, 1)[0]
    if alone is None and prepared.config.runtime.lanes == "auto":
        return Verdict(unbatched=diagnosis.of_unbatched(failure)), None
    return _mistaken(
        *(
            diagnosis.of_lanes(failure)
            if alone is None
            else diagnosis.of_mistake(prepared, alone)
        )
    )


def _mistaken(
    line: str, cause: BaseException | None
) -> tuple[Verdict, BaseException | None]:
    """The verdict on a mistake, and its cause."""
    return Verdict(line, "".join(traceback.format_exception(cause))), cause


def attempt(prepared: Prepared, lanes: int) -> tuple[Failure | None, set[str]]:
    """How the trial fails with at most ``lanes`` lanes, None if it does not, and what
    ``imitation.play`` returns.
    """
    device = prepared.resources.device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            return None, imitation.play(prepared, lanes)
        except Failure as failure:
            return failure, set()
