"""Objects of a rank that train and score in all rounds, and their use of GPU memory.

The number of lanes that fit on a GPU follows from the model, the batch and the GPU's
size. It never depends on the memory that is free at the moment. The peak that torch's
allocator reports for a trial step differs a little from call to call. The last bits on
a GPU depend on the number of lanes, so a trial step is no option.
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
from hpcfl.clients.execution import PIECE, Kernel, OperatorObserver, choose, is_full
from hpcfl.clients.losses import HeadModel, Loss, Predict, Tensors
from hpcfl.clients.optimizers import slots
from hpcfl.clients.samples import Samples
from hpcfl.clients.scoring import Blocks
from hpcfl.clients.setup import Setup
from hpcfl.errors import RunFailure
from hpcfl.experiment.sections import Form, Training
from hpcfl.files import heartbeat
from hpcfl.models.random import random_layers
from hpcfl.models.replaced import side_by_side
from hpcfl.rows import constants
from hpcfl.rows.layout import Layout, lay_out_parameters
from hpcfl.scores.base import Score

if TYPE_CHECKING:
    from hpcfl.clients.sample_privacy import SamplePrivacy

Found = TypeVar("Found")
# of the memory, for lanes and rows; the rest is for workspaces of libraries and fragments
LANE_SHARE = 0.7
ROWS_SHARE = 0.5  # of that, the most for the rows of clients
# For the private state of clients, whether they train or not. Rows that were replaced
# stay as long as a checkpoint under way or the best round so far has them: at most four
# times as much.
STATE_SHARE = 0.05
# Models of a lane that stay for a whole training: its weights, the copy of them that
# graphs read, and its anchor if it has one.
KEPT_MODELS = 3
SCORING_MODELS = 2  # and of one that is scored: its own weights, a rest's copy
# Copies of the gradients that graphs retain between calls: in autograd's layout, in the
# weights' layout, and in the input of the next step. Tensors that the forward pass saves
# for the backward pass are counted separately.
GRADIENT_COPIES = 3
# And of a lane that trains: a copy of its weights where lanes are not neighbours, the
# gradients of the two plain steps that a replay is compared with, one for the
# differences, one on the way to the optimiser; and what a step in a method's hands has
# beside these, at most for Per-FedAvg without second derivatives.
TRAINING_MODELS = GRADIENT_COPIES + 5 + 7
# Gradients of each sample of a piece: as they are made, scaled, and masked.
SAMPLE_COPIES = 4
SLOT_COPIES = 1  # of each slot that the optimiser keeps, what a step makes of it
# Each client of a round, side by side or not, needs its received and its sent row, and
# its private state before and after the round.
ROWS = STATES = 2
HEAD_FLOATS = 1 << 24  # of the models that train side by side on a CPU, 64 MB
# Copies of features at once: in blocks, a client's in one piece, all clients' in one.
FEATURE_COPIES = 3


class Stopwatch:
    """Adds up seconds in ``seconds``, by the name of the phase.

    One phase runs at a time, and an inner phase pauses the outer.
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
        """Measure a block. Its time without inner phases is added to
        ``seconds[name]``.
        """
        self._settle()
        self._running.append(name)
        try:
            yield
        finally:
            self._settle()
            self._running.pop()

    def _settle(self) -> None:
        """Give the time since the last change of phase to the phase that is running."""
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


@dataclass(frozen=True)
class HeadKernel:
    """The kernel of the layers above a model's features.

    Attributes:
        memory: bytes of features that clients side by side may have; one client's are
            always held.
        fits: by frozen mode and trained names, whether features are computed alike in
            all mini-batches.
        losses: by trained names and the loss's identity the loss, and whether it reads
            samples through their features alone.
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
    """Return a kernel that trains heads on features, or None for a model without
    ``features`` or with further tensors above them.

    lanes, replay: as for ``execution.choose``. memory: bytes that features may take.
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
        choose(head, device, lanes, replay, most=most), memory / FEATURE_COPIES
    )


@dataclass(frozen=True)
class LaneChoice:
    """The lanes of a rank.

    Attributes:
        lanes, heads: of whole models and of heads alone, as ``execution.choose`` takes
            them.
        form: of a convolution over lanes.
        notes: lines that a user should read before round 1.
        clients_on_device: as ``Resources.clients_on_device``.
    """

    lanes: int | str
    heads: int | str
    form: Form
    notes: list[str] = field(default_factory=list)
    clients_on_device: int = sys.maxsize


class Attempt:
    """Work of some clients in one call of the kernel, as a block of ``with``.

    The block passes over the error of a GPU whose memory is full, unless there is one
    client alone. So the work may leave nothing behind unless it ends. It must be a
    function call, so that its variables are freed afterwards.

    Attributes:
        clients: their positions.
        fits: whether the memory held them.
    """

    def __init__(self, clients: list[int]) -> None:
        self.clients = clients
        self.fits = True

    def __enter__(self) -> None:
        """Begin the work."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> bool:
        """Note whether the memory was full; return whether the error is passed over."""
        is_memory = isinstance(error, RuntimeError) and is_full(error)
        self.fits = not (is_memory and len(self.clients) > 1)
        return not self.fits


@dataclass(frozen=True)
class Resources:
    """A rank's samples, its kernel and what else training and scoring need.

    buffers: the layout of a model's batch-norm statistics, of width 0 without batch
        norm.
    scores: what is measured of every scored model, by name.
    head: what trains a head above frozen layers; None where the model has no
        ``features``.
    attackers: ids of all clients whose numbers are left out of means, ascending.
    privacy: of local training at the level of samples; None without.
    clients_on_device: the most clients whose rows lie on the device at once; those of
        further clients lie on the CPU.
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

    @property
    def training(self) -> Training:
        return self.setup.training

    @property
    def lanes(self) -> list[int]:
        """The most lanes side by side from now on, of whole models and of heads."""
        return [kernel.widest for kernel in self._kernels()]

    def limit_lanes(self, lanes: list[int]) -> None:
        """Limit the lanes of each kernel to those in ``lanes``."""
        for kernel, most in zip(self._kernels(), lanes, strict=True):
            kernel.widest = min(kernel.widest, most)

    def _kernels(self) -> list[Kernel]:
        return [self.kernel, *([self.head.kernel] if self.head else [])]

    def attempts(self, clients: list[int]) -> Iterator["Attempt"]:
        """Yield an ``Attempt`` for the first of these clients, then for the next, and so
        on, each for as many as there may be lanes.

        Where a GPU's memory did not hold an attempt, the next one is for half as many
        of its clients.
        """
        while clients:
            attempt = Attempt(clients[: self.kernel.widest])
            yield attempt
            if attempt.fits:
                clients = clients[len(attempt.clients) :]
            else:
                self.kernel.narrow(len(attempt.clients))

    def map_chunks(
        self,
        rows: Tensor,
        buffers: Tensor,
        pools: list[np.ndarray],
        function: Predict,
        variables: Tensors,
        reduce: Callable[[Blocks, list[int]], Found],
    ) -> tuple[list[Found], Tensor]:
        """Return the results of ``reduce`` for chunks of n clients, and where each client
        stands among those of all chunks, [n].

        Args:
            rows, buffers, variables: of the clients, ``[n, …]``.
            pools: each client's positions among the rank's samples.
            function: of (model, x, lane).
            reduce: a function of a chunk's blocks, as from ``scoring.compute_outputs``, and the
                positions of its clients.
        """
        results: list[Found] = []
        order: list[int] = []

        def run(chunk: list[int]) -> Found:
            lanes = torch.tensor(chunk, device=self.device)
            blocks = scoring.compute_outputs(
                kernel=self.kernel,
                tensors=self.stack_models(rows, buffers, lanes),
                samples=self.samples,
                pools=[pools[position] for position in chunk],
                variables={name: value[lanes] for name, value in variables.items()},
                function=function,
            )
            return reduce(blocks, chunk)

        for attempt in self.attempts(scoring.order_longest_first(pools)):
            with attempt:
                results.append(run(attempt.clients))
                order += attempt.clients
                heartbeat.beat()
        return results, torch.tensor(order).argsort()

    def compute_outputs(
        self,
        rows: Tensor,
        buffers: Tensor,
        pools: list[np.ndarray],
        function: Predict,
    ) -> list[Tensor]:
        """Return ``function`` of the samples of each client, ``[its samples, …]``."""

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
        """Copy some models and their buffers into tensors ``[L, *shape]`` by name.

        They lie in memory as the kernel wants them. rows, buffers: of n models, ``[n,
        P]`` and ``[n, B]``, of which those at positions ``lanes`` [L] are copied, once.
        """
        buffer_views = self.buffers.split(buffers)
        return self.stack_rows(rows, lanes) | {
            name: view.index_select(0, lanes) for name, view in buffer_views.items()
        }

    def stack_rows(self, rows: Tensor, lanes: Tensor) -> Tensors:
        """Copy rows ``[n, P]`` at positions ``lanes`` [L] as ``stack_models`` does."""
        views = self.setup.layout.split(rows)
        return self.kernel.lay_out(
            {name: view.index_select(0, lanes) for name, view in views.items()}
        )


def explain_full_gpu(error: BaseException) -> RunFailure | None:
    """Return the error for a user whose GPU is full, or None for any other error."""
    if not is_full(error):
        return None
    words = str(error).partition("\n")[0].partition(". GPU")[0]
    return RunFailure(
        f"the GPU's memory is full ({words}); give the job more GPUs, so that fewer clients "
        "share one, or set a smaller training.batch_size"
    )


def count_lanes(
    module: nn.Module,
    samples: Tensor,
    training: Training,
    memory: float,
    private: int,
    clients: int,
    of_samples: bool = False,
) -> int:
    """Return how many lanes of ``module`` train and are scored at once in ``memory``
    bytes, at least one.

    samples: one normalised sample or more, ``[count, *shape]``, on the module's device.
    private: bytes of a client's private state.
    clients: how many have their rows there at once, beside the lanes.
    of_samples: whether gradients of samples are taken.
    """
    frozen = constants.count_bytes(module)
    free = LANE_SHARE * memory - frozen - clients * client_bytes(module, private)
    lane = lane_bytes(module, samples[:1], training, private)
    if of_samples:
        lane += SAMPLE_COPIES * PIECE * _model_bytes(module)
    return max(1, int(free / lane))


def fit_clients(module: nn.Module, memory: float, private: int, clients: int) -> int:
    """Return how many of ``clients`` have their rows in ``memory`` bytes at once, at
    least one.

    private: bytes of a client's private state.
    """
    free = LANE_SHARE * memory - constants.count_bytes(module)
    fit = int(ROWS_SHARE * free / client_bytes(module, private))
    return max(1, min(clients, fit))


def client_bytes(module: nn.Module, private: int) -> int:
    """Return the bytes that a rank keeps for each client of a round during the whole
    round.
    """
    return ROWS * _model_bytes(module) + STATES * private


def lane_bytes(
    module: nn.Module, sample: Tensor, training: Training, private: int = 0
) -> int:
    """Return the most bytes that one lane needs to train on a batch or to score a block
    of samples.

    What the forward pass keeps for the backward pass is counted twice: in the graph,
    and in a plain step beside it.

    sample: normalised, ``[1, *shape]``. private: bytes of a client's private state.
    """
    model = _model_bytes(module)
    batch = sample.expand(training.batch_size, *sample.shape[1:]).contiguous()
    kept = len(slots(training))
    saved = _saved_bytes(module, batch)
    trained = (TRAINING_MODELS + SLOT_COPIES * kept) * model + 2 * saved
    # 2: a layer's input and output
    scored = (
        (GRADIENT_COPIES + SCORING_MODELS) * model
        + saved
        + 2 * _largest_result_bytes(module, sample) * scoring.BLOCK
    )
    return (KEPT_MODELS + kept) * model + max(trained, scored) + private


def _model_bytes(module: nn.Module) -> int:
    own = [*module.parameters(), *constants.collect_statistics(module).values()]
    return sum(tensor.nbytes for tensor in own)


def _weights(module: nn.Module) -> list[Tensor]:
    """Return a module's parameters, and its constants, which lanes do not copy."""
    return [*module.parameters(), *constants.collect(module).values()]


def _saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the bytes that the forward pass on ``x`` keeps for the backward pass, beside the
    parameters.
    """
    kept: dict[int, Tensor] = {}
    weights = {tensor.data_ptr() for tensor in _weights(module)}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    module.eval()  # a batch may be too small for the statistics of batch norm
    for layer in random_layers(module):
        layer.train()  # keeps which numbers it dropped
    with (
        side_by_side(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        loss = functional.cross_entropy(
            module(x), torch.zeros(len(x), dtype=torch.int64, device=x.device)
        )
    module.train()
    del loss
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@torch.no_grad()
def _largest_result_bytes(module: nn.Module, sample: Tensor) -> int:
    """Return the bytes of the largest result of any operation on the way of one sample through the
    model.
    """
    module.eval()
    sizes: list[tuple[int, int]] = []

    def note(operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        results = result if isinstance(result, tuple | list) else [result]
        for tensor in results:
            if isinstance(tensor, Tensor):
                address = tensor.untyped_storage().data_ptr()
                sizes.append((address, tensor.nbytes))

    with side_by_side(), OperatorObserver(note):
        module(sample)
    module.train()
    weights = {tensor.untyped_storage().data_ptr() for tensor in _weights(module)}
    results = [size for address, size in sizes if address not in weights]
    return max(sample.nbytes, *results)
