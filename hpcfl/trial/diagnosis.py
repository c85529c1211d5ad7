"""What failed in a trial, as one line: where in the user's code, and what was wrong
there.
"""

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import RunFailure, UserError
from hpcfl.experiment import blame, plugins
from hpcfl.methods._renamed import hint
from hpcfl.preparation.prepare import Prepared
from hpcfl.trial.failure import Diagnosis, Failure, placed
from hpcfl.trial.imitation import SAMPLES


def of_mistake(prepared: Prepared, failure: Failure) -> Diagnosis:
    """What is wrong with the model, if that fails by itself; else with the hook that
    failed.
    """
    return of_model(prepared) or of_hook(prepared, failure)


def of_hook(prepared: Prepared, failure: Failure) -> Diagnosis:
    """What is wrong in a hook of the method.

    It is placed at the innermost line of the user's code that the exception went
    through; without any, where the hook, the method or the model is defined, the first
    of these that is the user's.
    """
    error, method = failure.__cause__, type(prepared.config.method)
    assert error is not None
    if isinstance(error, UserError | RunFailure):
        return placed(str(error), blame.line_of(error)), error
    suspects = getattr(method, str(failure)), method, _model_plugin(prepared)
    place = blame.line_of(error) or next(
        filter(None, map(blame.definition_of, suspects)), None
    )
    return placed(
        f"method.name = '{prepared.method.name}' fails in '{failure}': {blame.said(error)}"
        + hint(error),
        place,
    ), error


def of_model(prepared: Prepared) -> Diagnosis | None:
    """What is wrong with the model's output for two samples in evaluation mode; None if
    nothing is.
    """
    samples, classes = prepared.resources.samples, prepared.setup.classes
    x, _ = samples.take(np.arange(min(SAMPLES, len(samples.y))))
    try:
        with torch.no_grad():
            output = prepared.setup.build().to(samples.device).eval()(x)
        if (
            not isinstance(output, Tensor)
            or output.dim() != 2
            or len(output) != len(x)
            or output.shape[1] < classes
        ):
            raise TypeError(
                f"gives {_size(output)}; expected {len(x)}×{classes}, an output for each of "
                f"{classes} classes"
            )
    except Exception as error:
        place = blame.line_of(error) or blame.definition_of(_model_plugin(prepared))
        text = (
            f"model.name = '{prepared.config.model.name}' fails on {len(x)} samples, {_size(x)}: "
            f"{blame.said(error)}"
        )
        return placed(text, place), error
    return None


def of_lanes(failure: Failure) -> Diagnosis:
    """What keeps clients from training side by side, and what to do about it; it works
    with one lane.
    """
    return f"{of_unbatched(failure)}; set runtime.lanes = 1", failure.__cause__


def of_unbatched(failure: Failure) -> str:
    """Where and why clients cannot be batched, as one line."""
    error = failure.__cause__
    assert error is not None
    said = blame.said(error).partition(". ")[0]
    return f"{blame.line_of(error) or 'model or method'}: cannot be batched over clients ({said})"


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
    return (
        "×".join(map(str, output.shape))
        if isinstance(output, Tensor)
        else f"a {type(output).__name__}"
    )
