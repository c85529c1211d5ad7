"""Diagnosis of a failed preflight: one line that names the cause and its place.

The cause is the machine, the model or the method.
"""

import numpy as np
from torch import Tensor

from hpcfl.errors import RunFailure, UserError, is_shortage
from hpcfl.experiment import plugins, user_code
from hpcfl.models import usable
from hpcfl.rows import randomness
from hpcfl.rows.declared import MisusedTensor, describe_form
from hpcfl.simulation import dry_round
from hpcfl.simulation.hooks import Hooks, MessageError, find_called_hook, find_hooks
from hpcfl.simulation.prepare import Prepared


def is_failure(error: BaseException) -> bool:
    """Return whether the machine, and not the experiment, is the cause of an error."""
    return isinstance(error, RunFailure) or is_shortage(error)


def describe_failure(error: BaseException) -> str:
    """Return a line on a failure of the machine, or on an error that occurred once."""
    if isinstance(error, RunFailure):
        return str(error)
    return f"the preflight before round 1 failed: {user_code.describe_error(error)}"


def diagnose(prepared: Prepared, error: BaseException) -> tuple[str, BaseException]:
    """Return a line on the cause of an error, and the exception behind it.

    The cause is the model if it fails alone, else the method. The place is the
    innermost line of the user's code in the traceback. Without such a line it is the
    first definition by the user among hook, method and model.

    Args:
        prepared: experiment.
        error: error in the preflight, not a failure of the machine.
    """
    of_model = diagnose_model(prepared)
    if of_model is not None:
        return of_model
    known = isinstance(error, UserError)
    if known and not isinstance(error, MisusedTensor):
        return f"{user_code.locate(error)}{error}", error
    hook, method = find_hook(error, prepared.hooks), type(prepared.method)
    model = plugins.find("hpcfl.models", "model.name", prepared.config.model.name)
    place = user_code.locate(error, getattr(method, hook, None), method, model)
    name = f"{place}method.name = '{prepared.method.name}'"
    if isinstance(error, MessageError | MisusedTensor):
        return f"{name}: {error}", error
    where = f" in '{hook}'" if hook else ""
    return f"{name} fails{where}: {user_code.describe_error(error)}", error


def find_hook(error: BaseException, hooks: Hooks) -> str:
    """Return the outermost function of the user's code in which an error was raised.

    If there is none, return the name of the hook that was called; "" without a hook.
    """
    for name, file in find_hooks(error, hooks):
        if user_code.is_own(file):
            return name
    return find_called_hook(error, hooks)


def diagnose_model(prepared: Prepared) -> tuple[str, BaseException] | None:
    """Return a line on an error of the model alone, and the exception; None if it runs.

    The model runs on a few samples, in evaluation mode and on a batch in training mode.
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
            return str(usable.explain(error, name, x)), error
    return None


def check_output(output: object, samples: int, classes: int) -> None:
    """Check the shape of a model's output.

    Args:
        output: output of the model.
        samples: number of samples in the batch.
        classes: number of classes.

    Raises:
        TypeError: The output does not have a row for each sample and a column for each
            class.
    """
    if isinstance(output, Tensor) and output.dim() == 2:
        rows, columns = output.shape
        if rows == samples and columns >= classes:
            return
    raise TypeError(
        f"gives {describe_form(output)}; expected [{samples}, {classes}], an output for "
        f"each of {classes} classes"
    )


def describe_unbatched(error: BaseException) -> str:
    """Return a line on the place and the reason that prevents batching of clients."""
    place = user_code.find_line(error) or "model or method"
    first_sentence = user_code.describe_error(error).partition(". ")[0]
    return f"{place}: cannot be batched over clients ({first_sentence})"
