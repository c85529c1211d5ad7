"""A rank's kernel and samples for all rounds, and a stopwatch of its phases.

``Resources`` holds the kernel, the samples and further objects that train and score
``Models``.
"""

import copy
import sys
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.clients.execution import (
    Kernel,
    choose_kernel,
    is_full,
)
from hpcfl.clients.losses import HeadModel, Loss, Tensors
from hpcfl.clients.samples import Samples
from hpcfl.clients.setup import Setup
from hpcfl.errors import RunFailure
from hpcfl.experiment.sections import Form, MostLanes, Training
from hpcfl.rows import constants
from hpcfl.rows.layout import Layout, lay_out_parameters
from hpcfl.scores.base import Score

if TYPE_CHECKING:
    from hpcfl.clients.sample_privacy import SamplePrivacy

HEAD_FLOATS = 1 << 24  # total size of models side by side on a CPU, 64 MB
# Copies of features: in blocks, concatenated by client, concatenated over all clients.
FEATURE_COPIES = 3


class Stopwatch:
    """Seconds of each phase, in ``seconds`` by name.

    One phase runs at a time; an inner phase pauses the outer one.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = self._last_lap = time.perf_counter()

    def take_lap(self) -> float:
        """Return the seconds since the last call, in any phase."""
        before, self._last_lap = self._last_lap, time.perf_counter()
        return self._last_lap - before

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a block and add its time without inner phases to ``seconds[name]``."""
        self._settle()
        self._running.append(name)
        try:
            yield
        finally:
            self._settle()
            self._running.pop()

    def _settle(self) -> None:
        """Add the time since the last change of phase to the running phase."""
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


@dataclass(frozen=True)
class HeadKernel:
    """Kernel of the layers above a model's features.

    Attributes:
        kernel: kernel that trains heads.
        memory: maximum bytes of the features of clients side by side; a single client's
            features may exceed it.
        sufficient: cached results of ``heads.features_suffice``, by frozen mode and
            trained names.
        readable: cached results of ``heads.reads_features_alone`` with the loss, by
            trained names and identity of the loss.
    """

    kernel: Kernel
    memory: float
    sufficient: dict[Hashable, bool] = field(default_factory=dict)
    readable: dict[Hashable, tuple[Loss, bool]] = field(default_factory=dict)


def make_head_kernel(
    module: nn.Module,
    device: torch.device,
    most_lanes: MostLanes,
    replay: bool,
    memory: float,
) -> HeadKernel | None:
    """Return a kernel that trains heads on features.

    Args:
        module: model of one client.
        device: device of the kernel.
        most_lanes, replay: as for ``execution.choose_kernel``.
        memory: maximum bytes of features.

    Returns:
        The kernel; None for a model without ``features``, or with further tensors above
        them.
    """
    has_head = isinstance(getattr(module, "head", None), nn.Module)
    if not has_head or not hasattr(module, "features"):
        return None
    layout = lay_out_parameters(module)
    below = layout.list_members(("body",))
    above = [name for name in layout.names if name not in below]
    head = HeadModel(copy.deepcopy(module))
    constants.hold_part(head, module)
    if [name for name, _ in head.named_parameters()] != above:
        return None
    parameters = sum(parameter.numel() for parameter in module.parameters())
    by_rule = max(1, HEAD_FLOATS // parameters)
    return HeadKernel(
        choose_kernel(head, device, most_lanes, replay, by_rule),
        memory / FEATURE_COPIES,
    )


@dataclass(frozen=True)
class LaneChoice:
    """Maximum numbers of lanes of a rank, and related choices.

    Attributes:
        models, heads: maximum numbers of lanes for whole models and for heads alone, as
            for ``execution.choose_kernel``.
        form: form of a convolution over lanes.
        notes: notes for the user before round 1.
        clients_on_device: as in ``Resources``.
    """

    models: MostLanes
    heads: MostLanes
    form: Form
    notes: list[str] = field(default_factory=list)
    clients_on_device: int = sys.maxsize


@dataclass(frozen=True)
class Models:
    """Models of n clients.

    Attributes:
        rows: parameters, ``[n, P]``.
        buffers: batch-norm statistics, ``[n, B]``.
        variables: tensors that losses, steps and predictions read, ``[n, …]`` by name.
        are_equal: whether the models are known to be equal.
    """

    rows: Tensor
    buffers: Tensor
    variables: Tensors = field(default_factory=dict)
    are_equal: bool = False


@dataclass(frozen=True)
class Resources:
    """A rank's samples, its kernel, and further objects for training and scoring.

    Attributes:
        setup: facts of the experiment.
        samples: samples of the rank's clients.
        kernel: kernel for whole models.
        buffers: layout of a model's batch-norm statistics, of width 0 without batch
            norm.
        device: device of the kernel.
        stopwatch: times of the rank's phases.
        scores: metrics of every scored model, by name.
        head: kernel that trains heads above frozen layers; None for a model without
            ``features``.
        attackers: ids of all clients that are excluded from means, ascending.
        privacy: sample-level privacy of local training; None without it.
        clients_on_device: maximum number of clients whose rows are on the device at
            once. Rows of further clients are on the CPU.
        pool_bytes: size in bytes of the largest pool that is copied to the device.
    """

    setup: Setup
    samples: Samples
    kernel: Kernel
    buffers: Layout
    device: torch.device
    stopwatch: Stopwatch
    scores: Mapping[str, Score] = field(default_factory=dict)
    head: HeadKernel | None = None
    attackers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    privacy: "SamplePrivacy | None" = None
    clients_on_device: int = sys.maxsize
    pool_bytes: int = sys.maxsize

    @property
    def training(self) -> Training:
        """Training section of the experiment."""
        return self.setup.training

    @property
    def lane_limits(self) -> list[int]:
        """The current maximum numbers of lanes: for whole models, and for heads.

        Without a head kernel there is only the first.
        """
        return [kernel.widest for kernel in self._list_kernels()]

    def limit_lanes(self, limits: list[int]) -> None:
        """Lower the maximum numbers of lanes to ``limits``, as in ``lane_limits``."""
        for kernel, most in zip(self._list_kernels(), limits, strict=True):
            kernel.widest = min(kernel.widest, most)

    def _list_kernels(self) -> list[Kernel]:
        return [self.kernel, *([self.head.kernel] if self.head else [])]

    def stack_models(self, models: Models, index: Tensor) -> Tensors:
        """Copy parameters and statistics into tensors ``[L, *shape]`` by name.

        The tensors have the memory layout of the kernel.

        Args:
            models: models of n clients.
            index: positions [L] of the models to copy.
        """
        buffer_views = self.buffers.split(models.buffers)
        return self.stack_rows(models.rows, index) | {
            name: view.index_select(0, index) for name, view in buffer_views.items()
        }

    def stack_rows(self, rows: Tensor, index: Tensor) -> Tensors:
        """Copy rows ``[n, P]`` at positions ``index`` [L], like ``stack_models``."""
        views = self.setup.layout.split(rows)
        return self.kernel.lay_out(
            {name: view.index_select(0, index) for name, view in views.items()}
        )


def explain_full_gpu(error: BaseException) -> RunFailure | None:
    """Return an error message for the user if ``error`` is a full GPU, else None."""
    if not is_full(error):
        return None
    words = str(error).partition("\n")[0].partition(". GPU")[0]
    return RunFailure(
        f"the GPU's memory is full ({words}); use more GPUs, so that fewer clients "
        "share one, or set a smaller training.batch_size"
    )
