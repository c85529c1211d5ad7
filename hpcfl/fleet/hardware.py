"""What all rounds of a rank share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hpcfl.experiment.sections import Training
from hpcfl.fleet.kernels import SerialKernel, StackedKernel
from hpcfl.fleet.samples import Samples
from hpcfl.fleet.setup import Setup
from hpcfl.fleet.stopwatch import Stopwatch
from hpcfl.fleet.training import Work
from hpcfl.rows.layout import Layout


@dataclass(frozen=True)
class Hardware:
    """A rank's samples, its kernel, the layout of buffers, its clock and its count of lane-steps."""

    setup: Setup
    samples: Samples
    kernel: SerialKernel | StackedKernel
    buffers: Layout
    device: torch.device
    beat: Callable[[], None]  # heartbeat, called once a mini-batch
    stopwatch: Stopwatch
    work: Work = field(default_factory=Work)

    @property
    def training(self) -> Training:
        return self.setup.training

    @property
    def seed(self) -> int:
        return self.setup.seed
