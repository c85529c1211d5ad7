"""What all rounds of a rank share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpcfl.experiment.sections import Training
from hpcfl.fleet.kernels import SerialKernel, StackedKernel, Tensors
from hpcfl.fleet.samples import Samples
from hpcfl.fleet.setup import Setup
from hpcfl.fleet.stopwatch import Stopwatch
from hpcfl.rows.layout import Layout
from hpcfl.scores.base import Score


@dataclass
class LaneSteps:
    """What a rank's lanes have done: ``needed`` mini-batches of clients, lane-steps ``computed``,
    ``samples``.

    ``turns``: steps of lanes side by side, of which there are fewer and fewer as clients finish.
    """

    needed: int = 0
    computed: int = 0
    turns: int = 0
    samples: int = 0

    def clear(self) -> None:
        self.needed = self.computed = self.turns = self.samples = 0


@dataclass(frozen=True)
class Resources:
    """A rank's samples, its kernel, the layout of buffers, its clock, the scores, its count of lane-steps."""

    setup: Setup
    samples: Samples
    kernel: SerialKernel | StackedKernel
    buffers: Layout
    device: torch.device
    beat: Callable[[], None]  # heartbeat, called once a mini-batch
    stopwatch: Stopwatch
    scores: Mapping[str, Score] = field(default_factory=dict)
    lane_steps: LaneSteps = field(default_factory=LaneSteps)

    @property
    def training(self) -> Training:
        return self.setup.training

    @property
    def seed(self) -> int:
        return self.setup.seed

    def side_by_side(self, clients: list[int], work: Callable[[list[int]], None]) -> None:
        """``work`` on the clients at these positions, as many at once as there may be lanes.

        Where a GPU's memory does not hold them, half as many from then on: ``work`` begins anew with fewer,
        and may leave nothing behind unless it ends. Raises torch.OutOfMemoryError where one is too many.
        """
        while clients:
            group = clients[:self.kernel.widest]
            if self._fits(group, work):
                clients = clients[len(group):]
            elif isinstance(self.kernel, StackedKernel):  # one lane alone has raised
                self.kernel.narrow(len(group) // 2)

    def _fits(self, clients: list[int], work: Callable[[list[int]], None]) -> bool:
        try:
            work(clients)
        except torch.OutOfMemoryError:
            if len(clients) == 1:
                raise
            return False  # what the failed attempt held is free once the exception is gone
        return True

    def stacked(self, rows: Tensor, buffers: Tensor) -> Tensors:
        """Copies of models ``[L, P]`` with their buffers ``[L, B]``: ``[L, *shape]`` by name, laid out for
        the kernel.
        """
        return self.kernel.lay_out(self.setup.layout.stack(rows) | self.buffers.stack(buffers))
