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

    def stacked(self, rows: Tensor, buffers: Tensor) -> Tensors:
        """Copies of models ``[L, P]`` with their buffers ``[L, B]``: ``[L, *shape]`` by name, laid out for
        the kernel.
        """
        return self.kernel.lay_out(self.setup.layout.stack(rows) | self.buffers.stack(buffers))
