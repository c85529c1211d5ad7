"""How many lanes fit on a GPU: a rule of the model, the batch and the GPU's size.

It never depends on what is free at the moment.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from hpcfl.experiment.sections import Training
from hpcfl.fleet.optimizers import moments
from hpcfl.fleet.scoring import BLOCK

SHARE = 0.7  # of the memory, for lanes; the rest is for rows that arrive and leave, workspaces and fragments
COPIES = 2  # of the model for each lane, whatever it does: its weights, and the row that they came from


def most_lanes(module: nn.Module, samples: Tensor, training: Training, memory: float) -> int:
    """How many lanes of ``module`` can train and be scored at once in ``memory`` bytes, at least one.

    samples: one normalised sample or more, ``[count, *shape]``, on the module's device.
    """
    return max(1, int(SHARE * memory / lane_bytes(module, samples[:1], training)))


def lane_bytes(module: nn.Module, sample: Tensor, training: Training) -> int:
    """The most bytes that one lane needs: to train on a batch, or to score a block of samples.

    What the forward pass keeps for the backward pass is counted twice, because each of these tensors has a
    gradient of its size for a while.

    sample: normalised, ``[1, *shape]``.
    """
    model = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    batch = sample.expand(training.batch_size, *sample.shape[1:]).contiguous()
    trained = (COPIES + 1 + moments(training)) * model + 2 * _saved(module, batch)  # 1: the gradient
    scored = COPIES * model + 2 * _largest(module, sample) * BLOCK  # 2: a layer's input and output
    return max(trained, scored)


def _saved(module: nn.Module, x: Tensor) -> int:
    """Bytes that the forward pass on ``x`` keeps for the backward pass, beside the parameters."""
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
