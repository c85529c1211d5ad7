"""Scoring: large blocks of each client's own samples through each client's own model.

Clients side by side do their whole blocks in lockstep, fewer and fewer of them, and
then their rests, grouped by size, as they train. A block's size follows from the
client's own pool alone.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hpcfl.clients.execution import Kernel
from hpcfl.clients.losses import Predict, Tensors, index_lanes
from hpcfl.clients.samples import Samples
from hpcfl.rows import mixing
from hpcfl.scores.base import Block, Score

SMALLEST = 16  # samples in a padded rest; fewer take as long
# Samples of one client at once; a fixed number, so that a client's scores do not depend
# on its neighbours.
BLOCK = 128

# lanes, outputs [a, b, …], y [a, b] and mask, bool [a, b], as ``compute_outputs`` yields them
Blocks = Iterator[tuple[list[int], Tensor, Tensor, Tensor]]
Sums = dict[str, Tensor]  # by name of the score: float64 [n, its width], on the CPU


def order_longest_first(pools: list[np.ndarray]) -> list[int]:
    """Return positions in ``pools``, the longest first.

    The first lanes of a chunk then still have whole blocks when others have ended.
    """
    return sorted(range(len(pools)), key=lambda i: (-len(pools[i]), i))


def _padded(length: int) -> int:
    """Return the padded length of a pool: whole blocks and a power of two of at least
    ``SMALLEST``.

    Like the size of a block it follows from the client's own pool alone.
    """
    rest = length % BLOCK
    if not rest:
        return length
    power_of_two = 1 << (rest - 1).bit_length()
    return length - rest + max(SMALLEST, power_of_two)


def _blocks(
    pools: list[np.ndarray], pads: bool
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield lanes and their next positions [a, b], −1 where padded: whole blocks, then rests
    of one size.

    Where no lane has anything, there is one block without samples.
    """
    lengths = [_padded(len(pool)) if pads else len(pool) for pool in pools]
    for start in range(0, max(lengths) - BLOCK + 1, BLOCK):
        stop = start + BLOCK
        lanes = [lane for lane, length in enumerate(lengths) if length >= stop]
        parts = [pools[lane][start:stop] for lane in lanes]
        yield lanes, pad_positions(parts, BLOCK)
    rests: dict[int, list[int]] = {}
    for lane, length in enumerate(lengths):
        size = length % BLOCK
        if size or not any(lengths):
            rests.setdefault(size, []).append(lane)
    for size, lanes in sorted(rests.items()):
        parts = [pools[lane][lengths[lane] - size :] for lane in lanes]
        yield lanes, pad_positions(parts, size)


def pad_positions(parts: list[np.ndarray], size: int) -> np.ndarray:
    """Return positions of at most ``size`` samples each as rows [a, size], padded with
    −1.
    """
    positions = np.full((len(parts), size), -1)
    lengths = np.array([[len(part)] for part in parts])
    positions[np.arange(size) < lengths] = np.concatenate(parts)
    return positions


def compute_outputs(
    kernel: Kernel,
    tensors: Tensors,
    samples: Samples,
    pools: list[np.ndarray],
    variables: Tensors,
    function: Predict,
) -> Blocks:
    """Run ``function`` over the pools of a chunk of L clients, a block of several lanes
    at a time.

    Yields for each block of b samples of ``a`` lanes: which lanes, the function's
    output ``[a, b, …]``, y [a, b], and mask, bool [a, b], which is false where stacked
    lanes are padded. A lane's blocks come in the order of its pool; a serial lane's
    last one is no longer than what is left.

    tensors, variables: of the clients' models and for the function, ``[L, …]`` by name.
    """
    blocks = list(_blocks(pools, kernel.widest > 1))
    numbers = np.concatenate([positions.ravel() for _, positions in blocks])
    # All positions go to the device in one transfer.
    on_device = mixing.move_to_device(torch.from_numpy(numbers), samples.device)
    parts = on_device.split([positions.size for _, positions in blocks])
    for (lanes, positions), index in zip(blocks, parts, strict=True):
        x, y = samples.take(index.clamp(min=0))
        x = x[None] if len(lanes) == 1 else x.view(*positions.shape, *x.shape[1:])
        chosen = index_lanes(lanes, samples.device)
        models = {name: tensor[chosen] for name, tensor in tensors.items()}
        values = {name: tensor[chosen] for name, tensor in variables.items()}
        output = kernel.predict(models, x, values, function)
        labels = y.view(positions.shape)
        mask = index.view(positions.shape) >= 0
        yield lanes, output, labels, mask


def add_rows(
    total: Tensor | None, lanes: list[int], part: Tensor, count: int
) -> Tensor:
    """Add ``part`` [a, …] to the rows ``lanes`` of ``total`` [count, …]; None is zeros."""
    total = part.new_zeros(count, *part.shape[1:]) if total is None else total
    total[index_lanes(lanes, part.device)] += part
    return total


def score(
    blocks: Blocks,
    clients: int,
    classes: int,
    scores: Mapping[str, Score],
) -> Sums:
    """Sum ``scores`` over the blocks of a chunk of so many clients, logits as
    ``compute_outputs`` yields them.

    Raises TypeError for other shapes than [samples, classes].
    """
    sums: Sums = {}
    for lanes, logits, y, mask in blocks:
        if logits.dim() != 3 or logits.shape[2] < classes:
            raise TypeError(
                f"predictions of a client have shape {list(logits.shape[1:])}; "
                f"expected [{logits.shape[1]}, {classes}], samples × classes"
            )
        block = Block(logits, y, mask, classes)
        for name, metric in scores.items():
            sums_of_block = metric.sums(block).double()
            sums[name] = add_rows(sums.get(name), lanes, sums_of_block, clients)
    widths = [part.shape[1] for part in sums.values()]
    # All at once, so that a device is waited for once.
    on_host = torch.cat(list(sums.values()), dim=1).cpu()
    columns = on_host.split(widths, dim=1)
    return dict(zip(sums, columns, strict=True))


def sum_by_class(
    blocks: Blocks,
    clients: int,
    classes: int,
) -> tuple[Tensor, Tensor]:
    """Return the sums [clients, classes, d] of the outputs [batch, d] by class over the
    blocks of a chunk, and the number of samples [clients, classes], float64.
    """
    sums = counts = None
    for lanes, output, y, mask in blocks:
        counted = mask[..., None]
        member = (one_hot(y, classes) * counted).double()
        values = torch.where(counted, output, 0).double()
        held = torch.einsum("lbk,lbd->lkd", member, values)
        sums = add_rows(sums, lanes, held, clients)
        counts = add_rows(counts, lanes, member.sum(dim=1), clients)
    assert sums is not None and counts is not None  # a chunk has a block at least
    return sums, counts
