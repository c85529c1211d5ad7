"""What failed in the preflight, as one line: where in the user's code, and what was
wrong there.
"""

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import blame, plugins
from hpcfl.methods._renamed import hint
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
    place = blame.line_of(error)
    if isinstance(error, UserError | RunFailure):
        return placed(str(error), place), error
    name = f"method.name = '{prepared.method.name}'"
    hook, method = hook_of(error), type(prepared.config.method)
    for suspect in (getattr(method, hook, None), method, _model_plugin(prepared)):
        place = place or blame.definition_of(suspect)
    if isinstance(error, MessageError):
        return placed(f"{name}: {error}", place), error
    where = f" in '{hook}'" if hook else ""
    text = f"{name} fails{where}: {blame.said(error)}{hint(error)}"
    return placed(text, place), error


def of_model(prepared: Prepared) -> Diagnosis | None:
    """What is wrong with the model's output for two samples in evaluation mode; None if
    nothing is.
    """
    samples, classes = prepared.resources.samples, prepared.setup.classes
    x, _ = samples.take(np.arange(min(SAMPLES, len(samples.y))))
    try:
        with torch.no_grad():
            output = prepared.setup.build().to(samples.device).eval()(x)
        _check_output(output, len(x), classes)
    except Exception as error:
        place = blame.line_of(error) or blame.definition_of(_model_plugin(prepared))
        name = prepared.config.model.name
        kind = " token ids" if samples.tokens else ""
        text = (
            f"model.name = '{name}' fails on {len(x)} samples, {_size(x)}{kind}: "
            f"{blame.said(error)}"
        )
        return placed(text, place), error
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


def of_unbatched(error: BaseException) -> str:
    """Where and why clients cannot be batched, as one line."""
    place = blame.line_of(error) or "model or method"
    first_sentence = blame.said(error).partition(". ")[0]
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
