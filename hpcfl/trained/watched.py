"""A round that is played again with somebody watching: after every mini-batch of the
clients' training.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from hpcfl.fleet import StepContext
from hpcfl.fleet.losses import Tensors
from hpcfl.fleet.training import Task, Trained
from hpcfl.trained.again import Keeper

Look = Callable[
    [str, StepContext], None
]  # of the training's phase and, after a step, what the step saw


@dataclass
class Watched(Keeper):
    """A fleet whose training is looked at; it computes what it computes anyway.

    longest: by phase, the fewest epochs of a training that ends when it has converged.
    """

    look: Look = lambda phase, context: None
    longest: dict[str, int] | None = None

    def _trained(
        self, rows: Tensor, model: str, variables: Tensors | None, task: Task
    ) -> Trained:
        fewest, until, step = (
            (self.longest or {}).get(task.phase, 0),
            task.until,
            task.step,
        )

        def watched(context: StepContext) -> None:
            if step is None:
                context.optimizer_step(context.gradient())
            else:
                step(context)
            self.look(task.phase, context)

        def long_enough(losses: Tensor, lanes: Tensors) -> Tensor:
            assert until is not None
            return until(losses, lanes) & (losses.shape[1] >= fewest)

        return super()._trained(
            rows,
            model,
            variables,
            replace(task, step=watched, until=until and long_enough),
        )
