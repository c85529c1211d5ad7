"""A rank's kernel and samples for all rounds, and estimates of GPU memory.

``Resources`` holds the kernel, the samples and further objects for training and
scoring. ``count_lanes`` estimates the number of lanes that fit on a GPU from the model,
the batch size and the total memory of the GPU. The number never depends on the
currently free memory or on a trial step: the peak that torch's allocator reports varies
slightly between calls, and the last bits on a GPU depend on the number of lanes.
"""

import copy
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.clients import scoring
from hpcfl.clients.execution import (
    PIECE,
    Kernel,
    OperatorObserver,
    choose_kernel,
    is_full,
)
from hpcfl.clients.losses import HeadModel, Loss, Predict, Tensors
from hpcfl.clients.optimizers import list_slots
from hpcfl.clients.samples import Samples
from hpcfl.clients.scoring import Blocks
from hpcfl.clients.setup import Setup
from hpcfl.errors import RunFailure
from hpcfl.experiment.sections import Form, Training
from hpcfl.files import heartbeat
from hpcfl.models.layer_replacements import batching_clients
from hpcfl.models.random import list_random_layers
from hpcfl.rows import constants
from hpcfl.rows.layout import Layout, lay_out_parameters
from hpcfl.scores.base import Score

if TYPE_CHECKING:
    from hpcfl.clients.sample_privacy import SamplePrivacy

Found = TypeVar("Found")
# Fraction of the memory for lanes and rows. The rest is for workspaces of libraries and
# fragmentation.
LANE_SHARE = 0.7
ROWS_SHARE = 0.5  # largest fraction of that part for the rows of clients
# Fraction for the private state of all clients, training or not. Replaced rows remain
# in memory while a checkpoint in progress or the best round so far refers to them: at
# most four times this fraction.
STATE_SHARE = 0.05
# Fraction for a pool of models. A method may copy the models before its clients train,
# while the memory for lanes is free.
POOL_SHARE = 0.1
# Models per lane during a whole training: its weights, the copy that graphs read, and
# its anchor if it has one.
KEPT_MODELS = 3
SCORING_MODELS = 2  # models per scored lane: its weights and a copy for the last block
# Copies of the gradients that graphs retain between calls: in autograd's layout, in the
# weights' layout, and in the input of the next step. Tensors that the forward pass saves
# for the backward pass are counted separately.
GRADIENT_COPIES = 3
# Models per training lane. 5: a copy of the weights for lanes that are not consecutive,
# the gradients of the two plain steps that a replay is compared with, the differences,
# and the directions of the optimiser. 7: the rows of a method's own step; Per-FedAvg
# without second derivatives has the most.
TRAINING_MODELS = GRADIENT_COPIES + 5 + 7
# Copies of the gradients of a piece's samples: computed, scaled and masked.
SAMPLE_COPIES = 4
SLOT_COPIES = 1  # temporary copies of each state of the optimiser during a step
# Each client of a round needs its received and its sent row, and its private state
# before and after the round, whether it currently trains or not.
ROWS = STATES = 2
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

    def lap(self) -> float:
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
        fits: cached results of ``heads.features_suffice``, by frozen mode and trained
            names.
        losses: cached results of ``heads.reads_features_alone`` with the loss, by
            trained names and identity of the loss.
    """

    kernel: Kernel
    memory: float
    fits: dict[Hashable, bool] = field(default_factory=dict)
    losses: dict[Hashable, tuple[Loss, bool]] = field(default_factory=dict)


def make_head_kernel(
    module: nn.Module,
    device: torch.device,
    lanes: int | str,
    replay: bool,
    memory: float,
) -> HeadKernel | None:
    """Return a kernel that trains heads on features.

    Args:
        module: model of one client.
        device: device of the kernel.
        lanes, replay: as for ``execution.choose_kernel``.
        memory: maximum bytes of features.

    Returns:
        The kernel; None for a model without ``features``, or with further tensors above
        them.
    """
    has_head = isinstance(getattr(module, "head", None), nn.Module)
    if not has_head or not hasattr(module, "features"):
        return None
    layout = lay_out_parameters(module)
    below = layout.members(("body",))
    above = [name for name in layout.names if name not in below]
    head = HeadModel(copy.deepcopy(module))
    constants.hold_part(head, module)
    if [name for name, _ in head.named_parameters()] != above:
        return None
    parameters = sum(parameter.numel() for parameter in module.parameters())
    most = max(1, HEAD_FLOATS // parameters)
    return HeadKernel(
        choose_kernel(head, device, lanes, replay, most=most), memory / FEATURE_COPIES
    )


@dataclass(frozen=True)
class LaneChoice:
    """Number of lanes of a rank, and related choices.

    Attributes:
        lanes: lanes for whole models, as for ``execution.choose_kernel``.
        heads: lanes for heads alone, as for ``execution.choose_kernel``.
        form: form of a convolution over lanes.
        notes: notes for the user before round 1.
        clients_on_device: as in ``Resources``.
    """

    lanes: int | str
    heads: int | str
    form: Form
    notes: list[str] = field(default_factory=list)
    clients_on_device: int = sys.maxsize


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
    def lanes(self) -> list[int]:
        """The current maximum numbers of lanes: for whole models, and for heads.

        Without a head kernel there is only the first.
        """
        return [kernel.widest for kernel in self._list_kernels()]

    def limit_lanes(self, lanes: list[int]) -> None:
        """Limit the lanes of each kernel to the numbers in ``lanes``."""
        for kernel, most in zip(self._list_kernels(), lanes, strict=True):
            kernel.widest = min(kernel.widest, most)

    def _list_kernels(self) -> list[Kernel]:
        return [self.kernel, *([self.head.kernel] if self.head else [])]

    def map_chunks(
        self,
        rows: Tensor,
        buffers: Tensor,
        pools: list[np.ndarray],
        function: Predict,
        variables: Tensors,
        reduce: Callable[[Blocks, list[int]], Found],
    ) -> tuple[list[Found], Tensor]:
        """Apply ``reduce`` to the outputs of n clients, chunk by chunk.

        Args:
            rows, buffers, variables: models, statistics and variables of the clients,
                ``[n, …]``.
            pools: positions of each client's samples among the rank's samples.
            function: function of (model, x, lane).
            reduce: function of a chunk's blocks, from ``scoring.compute_blocks``, and
                the positions of its clients.

        Returns:
            The result of each chunk, and the position of each client in the
            concatenation of all chunks, [n].
        """
        results: list[Found] = []
        order = scoring.order_longest_first(pools)

        def run(chunk: list[int]) -> Found:
            lanes = torch.tensor(chunk, device=self.device)
            blocks = scoring.compute_blocks(
                kernel=self.kernel,
                tensors=self.stack_models(rows, buffers, lanes),
                samples=self.samples,
                pools=[pools[position] for position in chunk],
                variables={name: value[lanes] for name, value in variables.items()},
                function=function,
            )
            return reduce(blocks, chunk)

        for attempt in self.kernel.attempt(order):
            with attempt as chunk:
                results.append(run(chunk))
                heartbeat.beat()
        return results, torch.tensor(order).argsort()

    def compute_outputs(
        self,
        rows: Tensor,
        buffers: Tensor,
        pools: list[np.ndarray],
        function: Predict,
    ) -> list[Tensor]:
        """Return ``function`` of the samples of each client, ``[samples, …]``.

        Args:
            rows, buffers: models and statistics of the clients, ``[n, …]``.
            pools: positions of each client's samples among the rank's samples.
            function: function of (model, x, lane), without variables.
        """

        def join(blocks: Blocks, chunk: list[int]) -> list[Tensor]:
            parts: list[list[Tensor]] = [[] for _ in chunk]
            for lanes, output, *_ in blocks:
                for lane, of_lane in zip(lanes, output, strict=True):
                    parts[lane].append(of_lane)
            like = next(found[0] for found in parts if found)[:0]
            joined = []
            for position, found in zip(chunk, parts, strict=True):
                joined.append(torch.cat([like, *found])[: len(pools[position])])
            return joined

        chunks, place = self.map_chunks(
            rows=rows,
            buffers=buffers,
            pools=pools,
            function=function,
            variables={},
            reduce=join,
        )
        found = list(itertools.chain.from_iterable(chunks))
        return [found[position] for position in place.tolist()]

    def stack_models(self, rows: Tensor, buffers: Tensor, lanes: Tensor) -> Tensors:
        """Copy models and their buffers into tensors ``[L, *shape]`` by name.

        The tensors have the memory layout of the kernel.

        Args:
            rows: models ``[n, P]``.
            buffers: batch-norm statistics ``[n, B]``.
            lanes: positions [L] of the models to copy.
        """
        buffer_views = self.buffers.split(buffers)
        return self.stack_rows(rows, lanes) | {
            name: view.index_select(0, lanes) for name, view in buffer_views.items()
        }

    def stack_rows(self, rows: Tensor, lanes: Tensor) -> Tensors:
        """Copy rows ``[n, P]`` at positions ``lanes`` [L], like ``stack_models``."""
        views = self.setup.layout.split(rows)
        return self.kernel.lay_out(
            {name: view.index_select(0, lanes) for name, view in views.items()}
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


def count_lanes(
    module: nn.Module,
    samples: Tensor,
    training: Training,
    memory: float,
    private: int,
    clients: int,
    computes_sample_gradients: bool = False,
) -> int:
    """Return the number of lanes that can train and be scored at once, at least one.

    Args:
        module: model of one client.
        samples: at least one normalised sample, ``[count, *shape]``, on the module's
            device.
        training: training section of the experiment.
        memory: total memory in bytes.
        private: bytes of a client's private state.
        clients: number of clients whose rows are in this memory at once.
        computes_sample_gradients: whether per-sample gradients are computed.
    """
    frozen = constants.count_bytes(module)
    free = LANE_SHARE * memory - frozen - clients * count_client_bytes(module, private)
    lane = count_lane_bytes(module, samples[:1], training, private)
    if computes_sample_gradients:
        lane += SAMPLE_COPIES * PIECE * _count_model_bytes(module)
    return max(1, int(free / lane))


def fit_clients(module: nn.Module, memory: float, private: int, clients: int) -> int:
    """Return the number of clients whose rows fit into memory at once, at least one.

    Args:
        module: model of one client.
        memory: total memory in bytes.
        private: bytes of a client's private state.
        clients: number of clients, the maximum of the result.
    """
    free = LANE_SHARE * memory - constants.count_bytes(module)
    fit = int(ROWS_SHARE * free / count_client_bytes(module, private))
    return max(1, min(clients, fit))


def count_client_bytes(module: nn.Module, private: int) -> int:
    """Return the bytes that a rank uses for each client during a whole round.

    Args:
        module: model of one client.
        private: bytes of a client's private state.
    """
    return ROWS * _count_model_bytes(module) + STATES * private


def count_lane_bytes(
    module: nn.Module, sample: Tensor, training: Training, private: int = 0
) -> int:
    """Return the maximum bytes of one lane that trains on a batch or scores a block.

    Tensors saved for the backward pass are counted twice: for the graph, and for a
    plain step at the same time.

    Args:
        module: model of one client.
        sample: normalised sample, ``[1, *shape]``.
        training: training section of the experiment.
        private: bytes of a client's private state.
    """
    model = _count_model_bytes(module)
    batch = sample.expand(training.batch_size, *sample.shape[1:]).contiguous()
    kept = len(list_slots(training))
    saved = _count_saved_bytes(module, batch)
    trained = (TRAINING_MODELS + SLOT_COPIES * kept) * model + 2 * saved
    # A layer has its input and its output in memory, hence the factor 2.
    scored = (
        (GRADIENT_COPIES + SCORING_MODELS) * model
        + saved
        + 2 * _count_largest_result(module, sample) * scoring.BLOCK
    )
    return (KEPT_MODELS + kept) * model + max(trained, scored) + private


def _count_model_bytes(module: nn.Module) -> int:
    own = [*module.parameters(), *constants.collect_statistics(module).values()]
    return sum(tensor.nbytes for tensor in own)


def _list_weights(module: nn.Module) -> list[Tensor]:
    """Return a module's parameters, and its constants, of which lanes have no copies."""
    return [*module.parameters(), *constants.collect(module).values()]


def _count_saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the bytes that the forward pass on ``x`` saves for the backward pass.

    Parameters and constants are excluded.
    """
    kept: dict[int, Tensor] = {}
    weights = {tensor.data_ptr() for tensor in _list_weights(module)}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    module.eval()  # a batch may be too small for the statistics of batch norm
    for layer in list_random_layers(module):
        layer.train()  # saves its mask of dropped elements
    with (
        batching_clients(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        loss = functional.cross_entropy(
            module(x), torch.zeros(len(x), dtype=torch.int64, device=x.device)
        )
    module.train()
    del loss
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@torch.no_grad()
def _count_largest_result(module: nn.Module, sample: Tensor) -> int:
    """Return the bytes of an operator's largest result in the forward pass of a sample."""
    module.eval()
    sizes: list[tuple[int, int]] = []

    def note(operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        results = result if isinstance(result, tuple | list) else [result]
        for tensor in results:
            if isinstance(tensor, Tensor):
                address = tensor.untyped_storage().data_ptr()
                sizes.append((address, tensor.nbytes))

    with batching_clients(), OperatorObserver(note):
        module(sample)
    module.train()
    weights = {tensor.untyped_storage().data_ptr() for tensor in _list_weights(module)}
    results = [size for address, size in sizes if address not in weights]
    return max(sample.nbytes, *results)
