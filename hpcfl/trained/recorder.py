"""Fleets that see what a method does in a round that is played again.

What a client's model is, only its method says, and it says so where it scores. So
nothing is asked of a method for this: the hooks of the round run once more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from hpcfl.clients import Fleet, StepContext
from hpcfl.clients.losses import Predict, Tensors
from hpcfl.clients.training import Task

# Called after each mini-batch with the training's phase and what the step saw.
StepObserver = Callable[[str, StepContext], None]


@dataclass(frozen=True)
class ScoredModel:
    """A column's models of n clients, as ``fleet.score`` was given them.

    rows: [n, P], or [P] if it is the same for all.
    buffers: [n, B].
    predict, variables: as for ``fleet.score``.
    """

    rows: Tensor
    buffers: Tensor
    predict: Predict | None
    variables: Tensors


@dataclass
class ModelRecorder(Fleet):
    """A fleet that records the models that are scored, by column.

    Their scores are not computed: the run recorded them.
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
    """Return a type of fleet that shows each mini-batch to ``observe`` and computes the
    same as any fleet.

    min_epochs: by phase, how many epochs a training lasts at least, even if its
        stopping rule would end it earlier.
    """

    def watch(task: Task) -> Task:
        return _watched(task, observe, (min_epochs or {}).get(task.phase, 0))

    return partial(ModelRecorder, adjust=watch)


def _watched(task: Task, observe: StepObserver, min_epochs: int) -> Task:
    """Return a training whose steps are shown to ``observe``."""
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
