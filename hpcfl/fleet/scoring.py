"""Scoring: large blocks of each client's own samples through each client's own model."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcfl.fleet.kernels import Kernel
from hpcfl.fleet.losses import Predict, Tensors
from hpcfl.fleet.samples import Samples
from hpcfl.scores.base import Block, Score

SMALLEST = 16  # samples in a padded rest; fewer take as long
# Samples of one client at once; a fixed number, so that a client's scores do not depend on its neighbours.
BLOCK = 128

Sums = dict[str, Tensor]  # by name of the score: float64 [n, its width], on the CPU


def groups(pools: list[np.ndarray]) -> Iterator[list[int]]:
    """Clients by their position in ``pools``, those of the same padded length together.

    Like the size of a block, a padded length follows from the client's own pool alone.
    """
    by_length: dict[int, list[int]] = {}
    for position, pool in enumerate(pools):
        by_length.setdefault(_padded(len(pool)), []).append(position)
    for _, positions in sorted(by_length.items()):
        yield positions


def _padded(length: int) -> int:
    """The length that a pool is padded to: whole blocks, and a power of two of at least ``SMALLEST``."""
    whole, rest = divmod(length, BLOCK)
    return whole * BLOCK + (max(SMALLEST, 1 << (rest - 1).bit_length()) if rest else 0)


def outputs(kernel: Kernel, tensors: Tensors, samples: Samples, pools: list[np.ndarray],
            variables: Tensors, function: Predict) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Run ``function`` over the pools of a chunk of L clients, block by block.

    Yields for each block of b samples the function's output ``[L, b, …]``, y [L, b] and mask, bool [L, b],
    which is false where stacked lanes are padded. A serial lane's last block is no longer than its pool.

    tensors, variables: of the clients' models and for the function, ``[L, …]`` by name.
    """
    longest = max(map(len, pools))
    padded = np.zeros((len(pools), longest if kernel.widest == 1 else _padded(longest)), np.int64)
    for row, pool in zip(padded, pools, strict=True):
        row[:len(pool)] = pool
    real = np.arange(padded.shape[1]) < np.array([[len(pool)] for pool in pools])
    positions, masks = (torch.from_numpy(array).to(samples.device) for array in (padded, real))
    for block, mask in zip(positions.split(BLOCK, dim=1), masks.split(BLOCK, dim=1), strict=True):
        x, y = samples.take(block.reshape(-1))
        x = x[None] if len(pools) == 1 else x.view(*block.shape, *x.shape[1:])
        yield kernel.predict(tensors, x, variables, function), y.view(block.shape), mask


def score(kernel: Kernel, tensors: Tensors, samples: Samples, pools: list[np.ndarray],
          variables: Tensors, predict: Predict, scores: Mapping[str, Score]) -> Sums:
    """The sums of ``scores`` over the pools of a chunk of L clients; arguments as for ``outputs``.

    Raises TypeError where ``predict`` does not return logits [samples, classes].
    """
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
    """The sums of several chunks as one, in the order of clients.

    order: the clients' positions, chunk after chunk.
    """
    by_client = torch.tensor(order).argsort()
    return {name: torch.cat([part[name] for part in parts])[by_client] for name in parts[0]}
