"""Scoring: large blocks of each client's own samples through each client's own model."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.fleet.kernels import Predict, SerialKernel, StackedKernel, Tensors
from hpcfl.fleet.samples import Samples
from hpcfl.scores.base import Block, Score

SMALLEST = 16  # samples; fewer take as long
# samples of one client at once; fixed, so that a client's numbers do not depend on its neighbours
BLOCK = 128


Sums = dict[str, Tensor]  # score → float64 [n, its width], on the CPU


def groups(pools: list[np.ndarray]) -> Iterator[list[int]]:
    """Positions of clients whose pools are padded to the same length.

    Like the block, the padded length follows from a client's own pool alone.
    """
    alike: dict[int, list[int]] = {}
    for position, pool in enumerate(pools):
        alike.setdefault(_padded(len(pool)), []).append(position)
    for _, positions in sorted(alike.items()):
        yield positions


def _padded(length: int) -> int:
    """Whole blocks, and the rest rounded up to a power of two, but not so small that there are many sizes."""
    whole, rest = divmod(length, BLOCK)
    return whole * BLOCK + (max(SMALLEST, 1 << (rest - 1).bit_length()) if rest else 0)


def outputs(kernel: SerialKernel | StackedKernel, tensors: Tensors, samples: Samples, pools: list[np.ndarray],
            variables: Tensors, function: Predict) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Run ``function`` over the pools of one of ``groups`` in blocks: yields output [L, b, …],
    y [L, b], mask [L, b].

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
          variables: Tensors, predict: Predict, scores: Mapping[str, Score]) -> Sums:
    """The sums of the scores over the pools of a chunk of lanes."""
    sums: Sums = {}
    for logits, y, mask in outputs(kernel, tensors, samples, pools, variables, predict):
        if logits.dim() != 3 or logits.shape[2] < samples.classes:
            raise TypeError(f"predictions of a client have shape {list(logits.shape[1:])}; "
                            f"expected [{logits.shape[1]}, {samples.classes}], samples × classes")
        block = Block(logits, y, mask, samples.classes)
        for name, one in scores.items():
            part = one.sums(block).double()
            sums[name] = sums[name] + part if name in sums else part
    together = torch.cat(list(sums.values()), dim=1).cpu()  # a device is waited for once
    return dict(zip(sums, together.split([part.shape[1] for part in sums.values()], dim=1), strict=True))


def merge(parts: Sequence[Sums], order: list[int]) -> Sums:
    """The sums of several groups as one, in the order of clients; ``order`` has their positions by group."""
    back = torch.tensor(order).argsort()
    return {name: torch.cat([part[name] for part in parts])[back] for name in parts[0]}
