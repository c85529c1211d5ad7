"""Fleets that pass each mini-batch of a replayed round to a function."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from hpcfl.clients import StepContext
from hpcfl.clients.losses import Tensors
from hpcfl.clients.training import Task
from hpcfl.trained.recorder import ModelRecorder

# Called after each mini-batch with the training's phase and the step's context.
StepObserver = Callable[[str, StepContext], None]


def step_recorder(
    observe: StepObserver, min_epochs: Mapping[str, int] | None = None
) -> Callable[..., ModelRecorder]:
    """Return a type of fleet that passes each mini-batch to ``observe``.

    The fleet computes the same as any other. min_epochs: by phase, the least epochs of
    a training, even if its stopping rule would end it earlier.
    """

    def watch(task: Task) -> Task:
        return _watched(task, observe, (min_epochs or {}).get(task.phase, 0))

    return partial(ModelRecorder, adjust=watch)


def _watched(task: Task, observe: StepObserver, min_epochs: int) -> Task:
    """Return a training whose steps are passed to ``observe``."""
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
