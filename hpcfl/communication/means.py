"""Means over the clients of all ranks, with the same bits for any number of ranks.

Each rank adds its own clients' rows, so that one row travels for each rank and not for
each client. The ranks first agree on the magnitude of each column, which fixes the
column's unit. Then they add whole numbers of units (``rows/sums.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import Mean, dtype_name
from hpcfl.rows import mixing, sums

Kind = Sequence[Any]  # the result of ``kind``, or a copy from another rank
Weights = Sequence[Any]  # the result of ``weights``, or a copy from another rank


def kind(mean: Mean) -> list[Any]:
    """Return the JSON-able description of a mean that is the same on all ranks.

    It has a client's shape, the type, and the number of means. The number is None for a
    single mean, which arrives as [width].
    """
    return [
        list(mean.tensor.shape[1:]),
        dtype_name(mean.tensor.dtype),
        mean.weights.shape[1] if mean.weights.dim() == 2 else None,
    ]


def weights(mean: Mean) -> list[Any]:
    """Return this rank's sums of weights, one for each of the k means, and its largest
    weight.

    The result is JSON-able.
    """
    table = _table(mean).double()
    return [table.sum(dim=0).tolist(), max([0.0, *table.flatten().tolist()])]


def over_ranks(
    communicator: Communicator,
    own: Mapping[str, Mean],
    kinds: Mapping[str, Kind],
    weights_by_rank: Mapping[str, Sequence[Weights]],
) -> dict[str, Tensor]:
    """Return the means by name, ``[width]`` or ``[k, width]``, on rank 0's CPU.
    Collective.

    Other ranks return {}.

    Args:
        own: the means of this rank's clients; empty if it hosts none of the cohort.
        kinds: the ``kind`` of each mean.
        weights_by_rank: the ``weights`` of each mean, from every rank that hosts clients of it.
    """
    if not kinds:
        return {}
    parts = {name: _part(own.get(name), one) for name, one in kinds.items()}
    totals = {name: _total_weights(weights_by_rank[name]) for name in kinds}
    magnitudes = {
        name: mixing.move_to_host(sums.magnitudes(*part)).numpy()
        for name, part in parts.items()
    }
    units, added = {}, {}
    # Ranks wait for each other once and not again before the sums: adding takes about as
    # long on each of them, and less than another wait where models are small.
    with communicator.collective_block():
        for name, part in parts.items():
            exponents = communicator.allreduce_max_array(magnitudes[name])
            largest_weight = max(largest for _, largest in weights_by_rank[name])
            units[name] = sums.units(
                torch.from_numpy(exponents), largest_weight, max(totals[name])
            )
            own_sums = mixing.move_to_host(sums.sums(*part, units[name])).numpy()
            added[name] = communicator.reduce_sum(own_sums)
    return {
        name: _mean(torch.from_numpy(values), units[name], totals[name], kinds[name])
        for name, values in added.items()
        if values is not None
    }


def _total_weights(weights_by_rank: Sequence[Weights]) -> list[float]:
    """Return the sum of all ranks' weights for each of the k means."""
    sums_of_ranks = [of_rank for of_rank, _ in weights_by_rank]
    return [sum(of_mean) for of_mean in zip(*sums_of_ranks, strict=True)]


def _table(mean: Mean) -> Tensor:
    """Return the weights [n, k] on the CPU."""
    weights = mean.weights
    if weights.dim() == 1:
        weights = weights[:, None]
    return weights.cpu()


def _part(mean: Mean | None, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return this rank's rows and weights [n, k].

    n is 0 for a rank that hosts none of the cohort and has no ``mean``.
    """
    if mean is not None:
        return mean.tensor.detach(), _table(mean)
    shape, dtype, count = kind
    no_rows = torch.empty(0, *shape, dtype=getattr(torch, dtype))
    no_weights = torch.empty(0, count or 1)
    return no_rows, no_weights


def _mean(added: Tensor, units: Tensor, totals: Sequence[float], kind: Kind) -> Tensor:
    """Return the mean, [k, width] or [width] as ``kind`` says, in the type of the rows.

    added: the sums over all ranks in whole ``units``. totals: the sums of all weights
    [k].
    """
    _, dtype, count = kind
    found = sums.means(added, units, totals, getattr(torch, dtype))
    return found[0] if count is None else found
