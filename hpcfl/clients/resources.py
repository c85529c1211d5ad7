"""What a rank trains and scores with, the same objects in all rounds."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpcfl.clients import memory
from hpcfl.clients.execution import BatchedKernel, Kernel
from hpcfl.clients.losses import Tensors
from hpcfl.clients.samples import Samples
from hpcfl.clients.setup import Setup
from hpcfl.clients.stopwatch import Stopwatch
from hpcfl.experiment.sections import Training
from hpcfl.rows.layout import Layout
from hpcfl.scores.base import Score


@dataclass
class LaneSteps:
    """Counts of what a rank's lanes have trained; one lane-step is one step of one
    lane.

    needed: the steps that clients have to do. computed: the lane-steps that were done
        for them.
    batched: the steps if those of lanes side by side count as one.
    samples: the samples that clients were trained on.
    """

    needed: int = 0
    computed: int = 0
    batched: int = 0
    samples: int = 0

    def clear(self) -> None:
        self.needed = self.computed = self.batched = self.samples = 0


@dataclass(frozen=True)
class HeadKernel:
    """The kernel of a model whose ``features(x)`` is ``x``, and for which losses it was
    found to do.

    memory: bytes of features that clients side by side may have; one client's are
    always held.
    """

    kernel: Kernel
    memory: float
    fits: dict[Hashable, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """A rank's samples, its kernel and what else training and scoring need.

    buffers: the layout of a model's batch-norm statistics, of width 0 without batch
        norm.
    scores: what is measured of every scored model, by name.
    head: what trains a head above frozen layers; None where the model has no
        ``features``.
    """

    setup: Setup
    samples: Samples
    kernel: Kernel
    buffers: Layout
    device: torch.device
    stopwatch: Stopwatch
    scores: Mapping[str, Score] = field(default_factory=dict)
    lane_steps: LaneSteps = field(default_factory=LaneSteps)
    head: HeadKernel | None = None

    @property
    def training(self) -> Training:
        return self.setup.training

    @property
    def seed(self) -> int:
        return self.setup.seed

    def side_by_side(
        self, clients: list[int], work: Callable[[list[int]], None]
    ) -> None:
        """``work`` on the clients at these positions, as many at once as there may be
        lanes.

        Where a GPU's memory does not hold them, half as many from then on: ``work``
        begins anew with fewer, and may leave nothing behind unless it ends. Raises what
        says so where one is too many.
        """
        while clients:
            group = clients[: self.kernel.widest]
            fits = True
            try:
                work(group)
            except RuntimeError as error:
                if len(group) == 1 or not memory.is_full(error):
                    raise
                fits = False  # what the attempt held is free after this block
            if fits:
                clients = clients[len(group) :]
            else:
                assert isinstance(self.kernel, BatchedKernel)
                self.kernel.narrow(len(group))

    def stacked(self, rows: Tensor, buffers: Tensor, lanes: Tensor) -> Tensors:
        """Copies of some models and their buffers as tensors ``[L, *shape]`` by name.

        They lie in memory as the kernel wants them. rows, buffers: of n models, ``[n,
        P]`` and ``[n, B]``, of which those at positions ``lanes`` [L] are copied, once.
        """
        views = self.setup.layout.split(rows) | self.buffers.split(buffers)
        return self.kernel.lay_out(
            {name: view.index_select(0, lanes) for name, view in views.items()}
        )
