"""Call a function after each mini-batch of a repeated round."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from hpcfl.clients import StepContext
from hpcfl.clients.losses import Tensors
from hpcfl.clients.training import Task
from hpcfl.trained.recorder import ModelRecorder

# Function that is called after each mini-batch with the phase and the step's context.
StepObserver = Callable[[str, StepContext], None]


def make_step_recorder(
    observe: StepObserver, min_epochs: Mapping[str, int] | None = None
) -> Callable[..., ModelRecorder]:
    """Return a factory of fleets that call ``observe`` after each mini-batch.

    The call does not change the numbers.

    Args:
        observe: Function of the phase and the context of the step.
        min_epochs: Minimum number of epochs of a training by phase, which overrides an
            earlier end by its stopping rule. More epochs change the numbers.
    """

    def watch(task: Task) -> Task:
        return _watched(task, observe, (min_epochs or {}).get(task.phase, 0))

    return partial(ModelRecorder, adjust=watch)


def _watched(task: Task, observe: StepObserver, min_epochs: int) -> Task:
    """Return a training that calls ``observe`` after each mini-batch."""
    method_step, stops = task.step, task.until

    def step(context: StepContext) -> None:
        if method_step is None:
            context.optimizer_step(context.gradient())
        else:
            method_step(context)
        observe(task.phase, context)

    def until(losses: Tensor, lanes: Tensors) -> Tensor:
        assert stops is not None
        return stops(losses, lanes) & (losses.shape[1] >= min_epochs)

    return replace(task, step=step, until=until if stops else None)
