"""Scoring: large blocks of each client's own samples through each client's own model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from hpcfl.fleet.kernels import Predict, SerialKernel, StackedKernel, Tensors
from hpcfl.fleet.samples import Samples

SMALLEST = 16  # samples; fewer take as long
BLOCK = 128  # samples of one client at once; fixed, so that a client's numbers do not depend on its neighbours


@dataclass(frozen=True)
class Score:
    """What a model did on each client's samples: correct answers, samples, summed cross-entropy, each [n].

    by_class: correct answers of each class [n, classes], where all clients are tested on the same samples; else [n, 0].
    """

    correct: Tensor
    total: Tensor
    loss: Tensor
    by_class: Tensor


def groups(pools: list[np.ndarray], widest: int) -> Iterator[list[int]]:
    """Positions of clients whose pools are padded to the same length, at most ``widest`` at a time.

    Like the block, the padded length follows from a client's own pool alone.
    """
    alike: dict[int, list[int]] = {}
    for position, pool in enumerate(pools):
        alike.setdefault(_padded(len(pool)), []).append(position)
    for _, positions in sorted(alike.items()):
        for start in range(0, len(positions), widest):
            yield positions[start:start + widest]


def _padded(length: int) -> int:
    """Whole blocks, and the rest rounded up to a power of two, but not so small that there are many sizes."""
    whole, rest = divmod(length, BLOCK)
    return whole * BLOCK + (max(SMALLEST, 1 << (rest - 1).bit_length()) if rest else 0)


def outputs(kernel: SerialKernel | StackedKernel, tensors: Tensors, samples: Samples, pools: list[np.ndarray],
            variables: Tensors, function: Predict) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Run ``function`` over the pools of one of ``groups`` in blocks: yields output [L, b, …], y [L, b], mask [L, b].

    A serial lane's last block is as long as its pool; stacked lanes are padded and masked.
    """
    longest = max(map(len, pools))
    index = np.zeros((len(pools), longest if kernel.widest == 1 else _padded(longest)), np.int64)
    for row, pool in zip(index, pools, strict=True):
        row[:len(pool)] = pool
    held = np.arange(index.shape[1]) < np.array([[len(pool)] for pool in pools])
    whole, real = (torch.from_numpy(array).to(samples.device) for array in (index, held))
    for part, mask in zip(whole.split(BLOCK, dim=1), real.split(BLOCK, dim=1), strict=True):
        x, y = samples.take(part.reshape(-1))
        x = x[None] if len(pools) == 1 else x.view(*part.shape, *x.shape[1:])
        yield kernel.predict(tensors, x, variables, function), y.view(part.shape), mask


def score(kernel: SerialKernel | StackedKernel, tensors: Tensors, samples: Samples, pools: list[np.ndarray],
          variables: Tensors, predict: Predict) -> Score:
    """Accuracy and loss of a chunk of lanes on their pools."""
    sums = torch.zeros(3, len(pools), dtype=torch.float64, device=samples.device)
    by_class = sums.new_zeros(len(pools), samples.classes if samples.global_test else 0)
    for logits, y, mask in outputs(kernel, tensors, samples, pools, variables, predict):
        if logits.dim() != 3 or logits.shape[2] < samples.classes:
            raise TypeError(f"predictions of a client have shape {list(logits.shape[1:])}; expected [{logits.shape[1]}, "
                            f"{samples.classes}], samples × classes")
        right = (logits.argmax(dim=2) == y) & mask
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(mask)
        sums += torch.stack([right.double().sum(1), mask.double().sum(1), torch.where(mask, loss, 0).double().sum(1)])
        if samples.global_test:
            by_class.scatter_add_(1, y, right.double())
    correct, total, loss = sums.cpu()
    return Score(correct, total, loss, by_class.cpu())


def merge(scores: Sequence[Score], order: list[int]) -> Score:
    """The scores of several groups as one, clients in ascending order; ``order`` has their positions group by group."""
    back = torch.tensor(order).argsort()
    return Score(*(torch.cat([getattr(score, part.name) for score in scores])[back] for part in fields(Score)))
