"""Fleets that see what a method does in a round that is played again.

What a client's model is, only its method says, and it says so where it scores. So
nothing is asked of a method for this: the hooks of the round run once more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from hpcfl.clients import Fleet, StepContext, TrainOptions
from hpcfl.clients.losses import Predict, Tensors
from hpcfl.clients.training import Task, Trained

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


@dataclass
class StepRecorder(ModelRecorder):
    """A fleet whose every mini-batch is shown to ``observe``; it computes what any
    fleet computes.

    min_epochs: by phase, how many epochs a training lasts at least, even if its
        stopping rule would end it earlier.
    """

    observe: StepObserver = lambda phase, context: None
    min_epochs: Mapping[str, int] = field(default_factory=dict)

    def _play(self, task: Task, rows: Tensor, options: TrainOptions) -> Trained:
        least = self.min_epochs.get(task.phase, 0)

        def step(context: StepContext) -> None:
            if task.step is None:
                context.optimizer_step(context.gradient())
            else:
                task.step(context)
            self.observe(task.phase, context)

        def until(losses: Tensor, lanes: Tensors) -> Tensor:
            assert task.until is not None
            return task.until(losses, lanes) & (losses.shape[1] >= least)

        stops = None if task.until is None else until
        observed = replace(task, step=step, until=stops)
        return super()._play(observed, rows, options)
