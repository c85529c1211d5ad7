"""What failed in the preflight, as one line: where in the user's code, and what was
wrong there.
"""

import traceback

import numpy as np
from torch import Tensor

from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import plugins, user_code
from hpcfl.methods.base import Method
from hpcfl.models import _usable as usable
from hpcfl.rows import randomness
from hpcfl.rows.declared import UnknownName
from hpcfl.simulation.dry_round import SAMPLES, hook_of
from hpcfl.simulation.message_check import MessageError
from hpcfl.simulation.prepare import Prepared

# a line, and the exception behind it
Diagnosis = tuple[str, BaseException | None]


def placed(text: str, place: str | None) -> str:
    """The text behind the ``file:line`` that it is about, where that is known."""
    return f"{place}: {text}" if place else text


def of_mistake(prepared: Prepared, error: BaseException) -> Diagnosis:
    """What is wrong with the model, if that fails by itself; else with the method."""
    return of_model(prepared) or of_method(prepared, error)


def of_method(prepared: Prepared, error: BaseException) -> Diagnosis:
    """What is wrong in the method.

    It is placed at the innermost line of the user's code that the exception went
    through; without any, where the hook, the method or the model is defined, the first
    of these that is the user's.
    """
    place = user_code.find_line(error)
    known = isinstance(error, UserError | RunFailure)
    if known and not isinstance(error, UnknownName):
        return placed(str(error), place), error
    name = f"method.name = '{prepared.method.name}'"
    hook, method = own_hook_of(error) or hook_of(error), type(prepared.config.method)
    for suspect in (getattr(method, hook, None), method, _model_plugin(prepared)):
        place = place or user_code.find_definition(suspect)
    if isinstance(error, MessageError | UnknownName):
        return placed(f"{name}: {error}", place), error
    where = f" in '{hook}'" if hook else ""
    text = f"{name} fails{where}: {user_code.describe_error(error)}"
    return placed(text, place), error


def own_hook_of(error: BaseException) -> str:
    """Return the outermost function of the user's method in which an error was raised; ""
    for none.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        of_method = isinstance(frame.f_locals.get("self"), Method)
        if of_method and user_code.is_own(frame.f_code.co_filename):
            return frame.f_code.co_name
    return ""


def of_model(prepared: Prepared) -> Diagnosis | None:
    """Return the fault of the model on a few samples, in evaluation mode and on a batch
    in training mode; None for a model that runs.
    """
    samples, name = prepared.resources.samples, prepared.config.model.name
    batch = min(SAMPLES, prepared.config.training.batch_size)
    for training, count in (False, SAMPLES), (True, batch):
        x, _ = samples.take(np.arange(min(count, len(samples.y))))
        try:
            with randomness.seeded(prepared.config.seed, "diagnosis"):
                module = prepared.setup.build().to(samples.device).train(training)
                output = module(x)
            _check_output(output, len(x), prepared.setup.classes)
        except Exception as error:
            plugin = _model_plugin(prepared)
            return str(usable.explained(error, name, plugin, x)), error
    return None


def _check_output(output: object, samples: int, classes: int) -> None:
    """Raise TypeError unless a model's output has a row for each sample and a column
    for each class.
    """
    if isinstance(output, Tensor) and output.dim() == 2:
        rows, columns = output.shape
        if rows == samples and columns >= classes:
            return
    raise TypeError(
        f"gives {_size(output)}; expected {samples}×{classes}, an output for each of "
        f"{classes} classes"
    )


def of_lanes(error: BaseException) -> Diagnosis:
    """What keeps clients from training side by side, and what to do about it; it works
    with one lane.
    """
    return f"{of_unbatched(error)}; set runtime.lanes = 1", error


def of_side_by_side(error: BaseException) -> Diagnosis:
    """Describe an error that occurs with several lanes only, and is no known limit of
    batching.
    """
    text = (
        f"{user_code.describe_error(error)}, where clients train side by side and not one after the "
        "other; set runtime.lanes = 1 to train one after the other"
    )
    return placed(text, user_code.find_line(error)), error


def of_failure(error: BaseException) -> Diagnosis:
    """Describe a failure of the machine, or an error that occurred once."""
    if isinstance(error, RunFailure):
        return str(error), error
    text = (
        f"the trial before round 1 failed: {user_code.describe_error(error)}; nothing was written, "
        "the same command tries again"
    )
    return text, error


def of_unbatched(error: BaseException) -> str:
    """Where and why clients cannot be batched, as one line."""
    place = user_code.find_line(error) or "model or method"
    first_sentence = user_code.describe_error(error).partition(". ")[0]
    return f"{place}: cannot be batched over clients ({first_sentence})"


def of_dependent(operators: list[str], lanes: int | str) -> str:
    """What a user should know where ``operators`` give clients side by side other bits,
    with this ``runtime.lanes``.
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


def _model_plugin(prepared: Prepared) -> object:
    """The class or function that makes the model."""
    return plugins.find("hpcfl.models", "model.name", prepared.config.model.name)


def _size(output: object) -> str:
    """The shape of a tensor, as 2×10; of anything else its type."""
    if isinstance(output, Tensor):
        return "×".join(map(str, output.shape))
    return f"a {type(output).__name__}"
