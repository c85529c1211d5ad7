"""Outputs of functions on the clients' samples, and their means by class.

Models are evaluated in the blocks of ``scoring.py``.
"""

from itertools import chain

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hpcfl.clients.losses import Predict
from hpcfl.clients.resources import Models, Resources
from hpcfl.clients.samples import pad_positions
from hpcfl.clients.scoring import Blocks, add_rows, map_chunks


def average_by_class(
    resources: Resources,
    models: Models,
    pools: list[np.ndarray],
    function: Predict,
) -> Tensor:
    """Return the means of ``function`` over each client's samples by class.

    Args:
        resources, models, pools: as for ``scoring.map_chunks``.
        function: function of (model, x, lane) that returns [batch, d].

    Returns:
        Means [n, classes, d], float32; zero for classes without samples.
    """

    def average(blocks: Blocks, chunk: list[int]) -> Tensor:
        sums, counts = sum_by_class(blocks, len(chunk), resources.samples.classes)
        return sums / counts.clamp(min=1)[..., None]

    means, order = map_chunks(resources, models, pools, function, average)
    return torch.cat(means).float()[order.to(resources.device)]


def sum_by_class(
    blocks: Blocks,
    clients: int,
    classes: int,
) -> tuple[Tensor, Tensor]:
    """Return sums of outputs by class over the blocks of a chunk, and class counts.

    Args:
        blocks: blocks from ``scoring.compute_blocks`` with outputs [batch, d].
        clients: number of clients of the chunk.
        classes: number of classes.

    Returns:
        Sums [clients, classes, d] and numbers of samples [clients, classes], float64.
    """
    sums = counts = None
    for lanes, output, y, mask in blocks:
        counted = mask[..., None]
        member = (one_hot(y, classes) * counted).double()
        values = torch.where(counted, output, 0).double()
        held = torch.einsum("lbk,lbd->lkd", member, values)
        sums = add_rows(sums, lanes, held, clients)
        counts = add_rows(counts, lanes, member.sum(dim=1), clients)
    assert sums is not None and counts is not None  # a chunk has at least one block
    return sums, counts


def compute_padded_outputs(
    resources: Resources,
    models: Models,
    pools: list[np.ndarray],
    function: Predict,
    size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``function`` of the samples of all clients, padded to one size.

    Args:
        resources, models, pools: as for ``scoring.map_chunks``.
        function: function of (model, x, lane) that returns [batch, d].
        size: size of the second dimension, at least that of the largest pool.

    Returns:
        Outputs [n, size, d], labels [n, size], and a mask, bool [n, size], which is
        False in padding. Outputs and labels are zero there.
    """
    found = compute_outputs(resources, models, pools, function)
    positions = torch.from_numpy(pad_positions(pools, size)).to(resources.device)
    held = positions >= 0
    labels = resources.samples.y[positions.clamp(min=0)].where(held, 0)
    outputs = found[0].new_zeros(*held.shape, *found[0].shape[1:])
    for place, of_client in enumerate(found):
        outputs[place, : len(of_client)] = of_client
    return outputs, labels, held


def compute_outputs(
    resources: Resources,
    models: Models,
    pools: list[np.ndarray],
    function: Predict,
) -> list[Tensor]:
    """Return ``function`` of the samples of each client, ``[samples, …]``.

    Args:
        resources, models, pools: as for ``scoring.map_chunks``.
        function: function of (model, x, lane).
    """

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

    chunks, order = map_chunks(resources, models, pools, function, join)
    found = list(chain.from_iterable(chunks))
    return [found[position] for position in order.tolist()]
