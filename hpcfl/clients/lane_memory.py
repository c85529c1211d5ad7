"""Estimates of the GPU memory of lanes and of clients.

``count_lanes`` estimates the number of lanes that fit on a GPU from the model, the
batch size and the total memory of the GPU. The number never depends on the currently
free memory or on a trial step: the peak that torch's allocator reports varies slightly
between calls, and the last bits on a GPU depend on the number of lanes.
"""

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.clients import scoring
from hpcfl.clients.execution import PIECE, OperatorObserver
from hpcfl.clients.optimizers import list_slots
from hpcfl.experiment.sections import Training
from hpcfl.models.layer_replacements import batching_clients
from hpcfl.models.random import list_random_layers
from hpcfl.rows import constants

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
    lane_bytes = count_lane_bytes(module, samples[:1], training, private)
    if computes_sample_gradients:
        lane_bytes += SAMPLE_COPIES * PIECE * _count_model_bytes(module)
    return max(1, int(free / lane_bytes))


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
