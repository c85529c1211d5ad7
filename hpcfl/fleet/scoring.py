"""Scoring: large blocks of each client's own samples through each client's own model."""

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from hpcfl.fleet.kernels import Predict, SerialKernel, StackedKernel, Tensors
from hpcfl.fleet.samples import Samples

BLOCK = 256  # samples of one client at once; fixed, so that a client's numbers do not depend on its neighbours


@dataclass(frozen=True)
class Score:
    """What a model did on each client's samples: correct answers, samples, summed cross-entropy, each [n]."""

    correct: Tensor
    total: Tensor
    loss: Tensor


def outputs(kernel: SerialKernel | StackedKernel, tensors: Tensors, samples: Samples, pools: list[Tensor],
            variables: Tensors, function: Predict):
    """Run ``function`` over the pools of a chunk's lanes in blocks: yields output [L, b, …], y [L, b], mask [L, b].

    A serial lane's last block is as long as its pool; stacked lanes are padded to whole blocks and masked.
    """
    longest = max((len(pool) for pool in pools), default=0)
    for start in range(0, longest, BLOCK):
        width = min(BLOCK, longest - start) if kernel.widest == 1 else BLOCK
        index = torch.zeros(len(pools), width, dtype=torch.int64)
        mask = torch.zeros(len(pools), width, dtype=torch.bool)
        for lane, pool in enumerate(pools):
            part = pool[start:start + width]
            index[lane, :len(part)] = part
            mask[lane, :len(part)] = True
        x, y = samples.take(index.reshape(-1))
        x = x[None] if len(pools) == 1 else x.view(len(pools), width, *x.shape[1:])
        yield (kernel.predict(tensors, x, variables, function), y.view(len(pools), width), mask.to(samples.device))


def score(kernel: SerialKernel | StackedKernel, tensors: Tensors, samples: Samples, pools: list[Tensor],
          variables: Tensors, predict: Predict) -> Score:
    """Accuracy and loss of a chunk of lanes on their pools."""
    sums = torch.zeros(3, len(pools), dtype=torch.float64, device=samples.device)
    for logits, y, mask in outputs(kernel, tensors, samples, pools, variables, predict):
        right = (logits.argmax(dim=2) == y) & mask
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(mask)
        sums += torch.stack([right.double().sum(1), mask.double().sum(1), torch.where(mask, loss, 0).double().sum(1)])
    return Score(*sums.cpu())
