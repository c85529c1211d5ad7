"""The experiment, tried on two samples of one client before round 1: what a user's own code cannot
do shows here.

Nothing is written yet, and all that a trial changes is made for it and thrown away; random numbers are keyed:
a run computes the same with and without it.
"""

import traceback
import warnings
from dataclasses import asdict, dataclass, replace

import torch

from hpcfl.communication.communicator import Communicator
from hpcfl.errors import UserError
from hpcfl.fleet.kernels import SerialKernel
from hpcfl.preparation.prepare import Prepared
from hpcfl.trial import diagnosis, imitation, measuring
from hpcfl.trial.imitation import Failure


@dataclass(frozen=True)
class Verdict:
    """What a rank found, else "": a mistake, a line, and its traceback; or what cannot be batched
    over clients."""

    mistake: str = ""
    details: str = ""
    unbatched: str = ""


class Elsewhere(Exception):
    """The traceback of another rank."""


def run(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Collective. The experiment as it can run: if lanes are "auto" and it cannot be batched, with
    one and a note.

    Raises UserError, the same on all ranks.
    """
    verdict, cause = judge(prepared)
    verdicts = [Verdict(**told) for told in communicator.allgather(asdict(verdict))]
    if mistaken := next((one for one in verdicts if one.mistake), None):
        raise UserError(mistaken.mistake) from (cause or Elsewhere(mistaken.details))
    if unbatched := next((one.unbatched for one in verdicts if one.unbatched), None):
        resources = replace(prepared.resources, kernel=SerialKernel(prepared.resources.kernel.module))
        note = f"{unbatched}; they train one after the other, as with runtime.lanes = 1"
        return replace(prepared, resources=resources, notes=[*prepared.notes, note])
    return prepared


def judge(prepared: Prepared) -> tuple[Verdict, BaseException | None]:
    """What this rank finds, and the exception behind a mistake.

    What fails for lanes side by side but not for one alone cannot be batched.
    """
    resources = prepared.resources
    if (found := measuring.mistake(resources.scores, prepared.setup.classes, resources.device)) is not None:
        return _of(*found)
    lanes = resources.kernel.widest
    failure = attempt(prepared, lanes) if prepared.store.ids else None
    if failure is None:
        return Verdict(), None
    alone = failure if lanes == 1 else attempt(prepared, 1)
    if alone is None and prepared.config.runtime.lanes == "auto" and not diagnosis.draws(failure):
        return Verdict(unbatched=diagnosis.of_unbatched(failure)), None
    return _of(*(diagnosis.of_lanes(failure) if alone is None else diagnosis.of_mistake(prepared, alone)))


def _of(line: str, cause: BaseException | None) -> tuple[Verdict, BaseException | None]:
    """The verdict of a mistake."""
    return Verdict(line, "".join(traceback.format_exception(cause))), cause


def attempt(prepared: Prepared, lanes: int) -> Failure | None:
    """How the trial fails with at most so many lanes, if it does."""
    device = prepared.resources.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            imitation.play(prepared, lanes)
        except Failure as failure:
            return failure
    return None
