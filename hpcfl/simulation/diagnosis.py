"""One-line diagnosis of a failed preflight: the place in the user's code, and the
mistake.
"""

import traceback

import numpy as np
from torch import Tensor

from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import plugins, user_code
from hpcfl.methods.base import Method
from hpcfl.models import usable
from hpcfl.rows import randomness
from hpcfl.rows.declared import UnknownName
from hpcfl.simulation.dry_round import SAMPLES, hook_of
from hpcfl.simulation.message_check import MessageError
from hpcfl.simulation.prepare import Prepared

# a line, and the exception behind it
Diagnosis = tuple[str, BaseException | None]


def placed(text: str, place: str | None) -> str:
    """Put the known ``file:line`` before a text."""
    return f"{place}: {text}" if place else text


def diagnose_mistake(prepared: Prepared, error: BaseException) -> Diagnosis:
    """Diagnose the model if it fails by itself, else the method."""
    return diagnose_model(prepared) or diagnose_method(prepared, error)


def diagnose_method(prepared: Prepared, error: BaseException) -> Diagnosis:
    """Diagnose a mistake in the method.

    The place is the innermost line of the user's code in the traceback. Without such a
    line it is the first user definition among hook, method and model.
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


def diagnose_model(prepared: Prepared) -> Diagnosis | None:
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


def diagnose_lanes(error: BaseException) -> Diagnosis:
    """Explain why clients cannot train side by side, and suggest a single lane."""
    return f"{describe_unbatched(error)}; set runtime.lanes = 1", error


def diagnose_side_by_side(error: BaseException) -> Diagnosis:
    """Describe an error that occurs with several lanes only, and is no known limit of
    batching.
    """
    text = (
        f"{user_code.describe_error(error)}, where clients train side by side and not one after the "
        "other; set runtime.lanes = 1 to train one after the other"
    )
    return placed(text, user_code.find_line(error)), error


def diagnose_failure(error: BaseException) -> Diagnosis:
    """Describe a failure of the machine, or an error that occurred once."""
    if isinstance(error, RunFailure):
        return str(error), error
    text = (
        f"the trial before round 1 failed: {user_code.describe_error(error)}; nothing was written, "
        "the same command tries again"
    )
    return text, error


def describe_unbatched(error: BaseException) -> str:
    """Say where and why clients cannot be batched, as one line."""
    place = user_code.find_line(error) or "model or method"
    first_sentence = user_code.describe_error(error).partition(". ")[0]
    return f"{place}: cannot be batched over clients ({first_sentence})"


def describe_dependent(operators: list[str], lanes: int | str) -> str:
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


def _model_plugin(prepared: Prepared) -> object:
    """Return the class or function that makes the model."""
    return plugins.find("hpcfl.models", "model.name", prepared.config.model.name)


def _size(output: object) -> str:
    """Return the shape of a tensor, such as 2×10, or the type of another object."""
    if isinstance(output, Tensor):
        return "×".join(map(str, output.shape))
    return f"a {type(output).__name__}"
