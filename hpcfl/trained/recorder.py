"""Fleets that record the models which a method scores in a replayed round.

Only the method knows a client's model, which it passes to the scoring. The hooks of the
round therefore run once more, and methods need no further code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from hpcfl.clients import Fleet, StepContext
from hpcfl.clients.losses import Predict, Tensors
from hpcfl.clients.training import Task

# Called after each mini-batch with the training's phase and the step's context.
StepObserver = Callable[[str, StepContext], None]


@dataclass(frozen=True)
class ScoredModel:
    """A column's models of n clients, as ``fleet.score`` received them.

    rows: [n, P], or [P] if it is the same for all. buffers: [n, B]. predict, variables:
    as for ``fleet.score``.
    """

    rows: Tensor
    buffers: Tensor
    predict: Predict | None
    variables: Tensors


@dataclass
class ModelRecorder(Fleet):
    """A fleet that records the scored models by column.

    It computes no scores: the run recorded them.
    """

    models: dict[str, ScoredModel] = field(default_factory=dict)

    def score(
        self,
        column: str | Sequence[str],
        rows: Tensor,
        predict: Predict | None = None,
        model: str = "model",
        variables: Tensors | None = None,
    ) -> None:
        columns = [column] if isinstance(column, str) else column
        copies = {name: tensor.clone() for name, tensor in (variables or {}).items()}
        buffers = self.buffers(model).clone()
        scored = ScoredModel(rows.clone(), buffers, predict, copies)
        for name in columns:
            self.models[name] = scored


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
