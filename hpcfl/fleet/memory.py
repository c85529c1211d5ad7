"""How many lanes fit on a GPU: a rule of the model, the batch and the GPU's size, never of what is free
at the moment."""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.experiment.sections import Training
from hpcfl.fleet.optimizers import moments
from hpcfl.fleet.scoring import BLOCK

SHARE = 0.7  # of the memory, for lanes; the rest is for rows that arrive and leave, workspaces and fragments
GIVEN = 2  # a lane's own weights and the row they came from


def most_lanes(module: nn.Module, samples: Tensor, training: Training, memory: float) -> int:
    """How many lanes of ``module`` can train and be scored at once in ``memory`` bytes, at least one.

    samples: normalised, ``[at least 1, *shape]``, on the module's device.
    """
    return max(1, int(SHARE * memory / lane_bytes(module, samples[:1], training)))


def lane_bytes(module: nn.Module, sample: Tensor, training: Training) -> int:
    """Bytes of one lane at its largest: in the backward pass of a batch, or in the forward pass of a block
    that is scored.

    What the backward pass needs is counted twice, as each of these has a gradient of its size for a while.
    """
    model = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    batch = sample.expand(training.batch_size, *sample.shape[1:]).contiguous()
    trained = (GIVEN + 1 + moments(training)) * model + 2 * _saved(module, batch)
    scored = GIVEN * model + 2 * _largest(module, sample) * BLOCK
    return max(trained, scored)


def _saved(module: nn.Module, x: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward pass, beside the parameters."""
    kept: dict[int, Tensor] = {}
    own = {parameter.data_ptr() for parameter in module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    module.eval()  # a batch may be too small for the statistics of batch norm
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = functional.cross_entropy(module(x), torch.zeros(len(x), dtype=torch.int64, device=x.device))
    module.train()
    del loss
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@torch.no_grad()
def _largest(module: nn.Module, sample: Tensor) -> int:
    """Bytes of the largest output of any part of the model for one sample."""
    sizes = [sample.nbytes]
    hooks = [part.register_forward_hook(lambda part, given, output: sizes.append(output.nbytes))
             for part in module.modules()]
    module.eval()
    module(sample)
    module.train()
    for hook in hooks:
        hook.remove()
    return max(sizes)
