"""How many lanes fit on a GPU: what torch's allocator says of a step of a few.

It follows from the model, the batch and the GPU's size, never from what is free at the
moment. Where a method needs more than that, ``Resources.side_by_side`` halves the lanes.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.errors import RunFailure
from hpcfl.experiment.sections import Training
from hpcfl.fleet.execution import BatchedKernel
from hpcfl.fleet.losses import Batch, Lane
from hpcfl.fleet.optimizers import Optimizer
from hpcfl.fleet.scoring import BLOCK
from hpcfl.rows.layout import of_buffers, of_parameters

# Of the memory, for lanes; the rest is for workspaces of libraries and fragments.
SHARE = 0.7
# For the private state of clients, whether they train or not. Rows that were replaced
# stay as long as a checkpoint under way or the best round so far has them: at most four
# times as much.
STATE_SHARE = 0.05
# A lane's step is held at once by the graph, by the step that its replay is compared
# with, and by a method with further models of its own.
HELD = 3
# What CUDA's libraries say when a GPU is full; torch's own allocator raises an error of
# its own.
FULL = "out of memory", "ALLOC_FAILED"


def is_full(error: BaseException) -> bool:
    """Whether an error says that a GPU's memory is full."""
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in FULL
    )


def failure(error: BaseException) -> RunFailure | None:
    """What to tell a user whose GPU is full; None for any other error."""
    if not is_full(error):
        return None
    words = str(error).partition("\n")[0].partition(". GPU")[0]
    return RunFailure(
        f"the GPU's memory is full ({words}); give the job more GPUs, so that fewer clients "
        "share one, or set a smaller training.batch_size"
    )


def most_lanes(
    module: nn.Module,
    samples: Tensor,
    training: Training,
    memory: float,
    private: int,
    clients: int,
) -> int:
    """How many lanes of ``module`` can train and be scored at once.

    Args:
        module: on a GPU.
        samples: one normalised sample or more, ``[count, *shape]``, beside it.
        training: the batch size and the optimiser.
        memory: bytes of the GPU.
        private: bytes of a client's private state.
        clients: how many take part in a round on one rank; what is kept of each is
            there beside the lanes.

    Returns:
        At least one.
    """
    try:
        lane = lane_bytes(module, samples[:1], training, private)
    except RuntimeError as error:
        if not is_full(error):
            raise
        return 1
    free = SHARE * memory - clients * client_bytes(module, private)
    return max(1, int(free / lane))


def client_bytes(module: nn.Module, private: int) -> int:
    """What a rank keeps of a client that takes part in a round, whether it trains now
    or later: its received and its trained parameters, and its private state before and
    after.
    """
    tensors = [*module.parameters(), *module.buffers()]
    return 2 * (sum(tensor.nbytes for tensor in tensors) + private)


def lane_bytes(
    module: nn.Module, sample: Tensor, training: Training, private: int = 0
) -> int:
    """How many bytes a lane needs, to train on a batch or to score a block of samples.

    Args:
        module: on a GPU.
        sample: normalised, ``[1, *shape]``, beside it.
        training: the batch size and the optimiser.
        private: bytes of a client's private state.
    """
    # What libraries allocate once is not a lane's: they do in the first call.
    _, few, more = (_peak_bytes(module, sample, training, lanes) for lanes in (2, 2, 4))
    return HELD * (more - few) // 2 + private


def _peak_bytes(
    module: nn.Module, sample: Tensor, training: Training, lanes: int
) -> int:
    """The most memory that a step of so many lanes and scoring a block of samples take."""
    device = sample.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    trained, buffers = of_parameters(module).names, of_buffers(module).names
    tensors = {
        name: named[name].detach().float().repeat(lanes, *[1] * named[name].dim())
        for name in (*trained, *buffers)
    }
    optimizer = Optimizer(training, 0.0, {name: tensors[name] for name in trained})
    kernel = BatchedKernel(module, lanes, replay=False)
    session = kernel.session(
        tensors, list(trained), _cross_entropy, optimizer=optimizer
    )
    samples = max(2, training.batch_size)  # batch norm needs two
    x = sample.expand(lanes, samples, *sample.shape[1:]).contiguous()
    y = torch.zeros(lanes, samples, dtype=torch.int64, device=device)
    session.step(slice(0, lanes), Batch(x, y))
    block = sample.expand(lanes, BLOCK, *sample.shape[1:]).contiguous()
    kernel.predict(tensors, block, {}, lambda model, x, lane: model(x))
    module.train()
    return torch.cuda.max_memory_allocated(device) - before


def _cross_entropy(model: nn.Module, batch: Batch, lane: Lane) -> Tensor:
    return functional.cross_entropy(model(batch.x), batch.y)
