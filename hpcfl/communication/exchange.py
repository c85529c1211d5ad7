"""The placement of clients on ranks, and the exchange of messages between ranks.

Every rank computes the placement by itself. The server's rows go to the ranks of the
clients. The clients' rows come back in client order, or as their mean.

A mean has the same bits for any number of ranks. Each rank adds its own clients' rows,
so that one row travels for each rank and not for each client. The ranks first agree on
the magnitude of each column, which fixes the column's unit. Then they add whole numbers
of units (``rows/sums.py``).
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.communicator import Array, Communicator, Empty
from hpcfl.communication.message import (
    Field,
    Inbox,
    Mean,
    Message,
    Mixture,
    composed,
    dtype_name,
    split,
    unwrap,
)
from hpcfl.rows import mixing, sums


@dataclass(frozen=True)
class Placement:
    """The rank of each client, ``owner`` [clients], among ``size`` ranks, fixed for a
    run.
    """

    owner: np.ndarray
    size: int

    def clients_of(self, rank: int) -> np.ndarray:
        """Return the ids of a rank's clients, ascending."""
        return np.flatnonzero(self.owner == rank)

    @property
    def idle(self) -> list[int]:
        """Return the worker ranks that have no client."""
        return [rank for rank in range(1, self.size) if rank not in self.owner]


def place(
    cost: Sequence[float], size: int, kind: Sequence[Any] | None = None
) -> Placement:
    """Place clients on the worker ranks 1 … size − 1, or on rank 0 if it is alone.

    The most costly clients come first, each to the least loaded worker. This keeps the
    slowest rank within 4/3 of the optimum (Graham, 1969). Ties go to the lower client
    id and the lower rank, so the result depends on the arguments only. Clients of equal
    cost then change places, so that those of one kind share ranks; all loads stay.

    cost: the local steps in an epoch of each client. size: the number of ranks. kind: a
    sortable value of each client; without it no clients change places.
    """
    workers = range(1, size) if size > 1 else range(1)
    loads = [(0.0, rank) for rank in workers]
    owner = np.zeros(len(cost), dtype=np.int64)
    for client in sorted(range(len(cost)), key=lambda client: (-cost[client], client)):
        load, rank = heapq.heappop(loads)
        owner[client] = rank
        heapq.heappush(loads, (load + cost[client], rank))
    if kind is not None:
        for _, equals in itertools.groupby(
            sorted(
                range(len(cost)),
                key=lambda client: (cost[client], kind[client], client),
            ),
            key=lambda client: cost[client],
        ):
            clients = list(equals)
            owner[clients] = np.sort(owner[clients])
    return Placement(owner, size)


def send(
    communicator: Communicator,
    placement: Placement,
    ids: np.ndarray,
    message: Message | None,
    device: torch.device,
) -> tuple[Inbox, float]:
    """Send rank 0's message to the clients ``ids``; return this rank's inbox.
    Collective.

    A field with a row for each client arrives as this rank's rows, in the order of
    ``ids``; so does a mixture. A shared field is [width]; a pool has all its rows and
    the picks of this rank's clients. Tensors are on ``device``. The second result is
    the mean number of floats for each client, as the method counts them; 0 on the other
    ranks.

    message: None on the other ranks.
    """
    lighter: dict[str, Any] = {}
    for name, value in (message or {}).items():
        if isinstance(value, Mixture):
            value = choose_lighter(value, communicator.size)
        lighter[name] = value
    outgoing, _ = split(lighter)
    rows, header = {}, []
    for name, field in outgoing.items():
        rows[name] = make_array(field.tensor, communicator.takes_gpu)
        dtype = dtype_name(field.tensor.dtype)
        header.append([name, field.shared, field.tensor.shape[-1], dtype])
    owner, arrived = placement.owner[ids], {}
    empty = choose_allocator(device, communicator.takes_gpu)
    with communicator.collective_block():
        header, of_two = communicator.bcast([header, composed(lighter)])
        for name, shared, width, dtype in header:
            own = rows.get(name)
            if shared:
                received = communicator.bcast_row(own, width, dtype, empty)
            else:
                received = communicator.scatter_rows(
                    own, owner, width=width, dtype=dtype, empty=empty
                )
            arrived[name] = mixing.move_to_device(torch.as_tensor(received), device)
    return unwrap(arrived, of_two), floats(lighter)


def floats(message: Message) -> float:
    """Return the mean number of floats that the server sends to a client.

    The number follows the method's own count.
    """
    total = 0.0
    outgoing, _ = split(message)
    for one in outgoing.values():
        total += float(np.mean(np.asarray(one.logical_floats(), dtype=float)))
    return total


def choose_lighter(mixture: Mixture, size: int) -> Mixture | Field:
    """Return a mixture or each client's own row, depending on the bytes to ``size``
    ranks.
    """
    own = len(mixture.weights) * mixture.rows.shape[1] * mixture.dtype.itemsize
    models = max(1, size - 1) * mixture.rows.nbytes + mixture.weights.nbytes
    return mixture if models < own else Field(mixture.mixed())


def make_header(message: Message) -> list[list[Any]]:
    """Return the JSON-able description of this rank's message that ``gather`` needs.

    Each entry has a name and a kind, which is the same on all ranks. The kind of a
    field is its width and type, that of a Mean ``describe_mean``. A Mean has this rank's
    ``sum_weights`` in third place.
    """
    rows, added = split(message)
    header: list[list[Any]] = []
    for name, field in rows.items():
        kind = [field.tensor.shape[1], dtype_name(field.tensor.dtype)]
        header.append([name, kind])
    for name, mean in added.items():
        header.append([name, describe_mean(mean), sum_weights(mean)])
    return header


def make_empty_uplink(header: Sequence[list[Any]]) -> dict[str, Tensor]:
    """Return what arrives on rank 0 from a cohort without clients: no rows, and zeros
    in place of means.

    header: the ``make_header`` of a client's message, in which each client has a single
    row for each mean.
    """
    uplink = {}
    for name, (size, dtype, *_), *_ in header:
        shape = size if isinstance(size, list) else [0, size]
        uplink[name] = torch.zeros(shape, dtype=getattr(torch, dtype))
    return uplink


def gather(
    communicator: Communicator,
    placement: Placement,
    ids: np.ndarray,
    message: Message,
    headers: Sequence[list[list[Any]]],
) -> dict[str, Tensor] | None:
    """Return the messages of the clients ``ids`` by name on rank 0, else None.
    Collective.

    A field arrives as ``[n, width]``, with rows in the order of ``ids``, a Mean as
    ``[width]`` or ``[k, width]``. The tensors are on the CPU.

    Args:
        message: the messages of this rank's clients, in the order of ``ids``; empty
            where it hosts none of them.
        headers: the ``make_header`` of every rank's message, by rank.

    Raises:
        ValueError: ranks send different fields.
    """
    rows, added = split(message)
    kinds, weights = find_common(headers)
    owner = placement.owner[ids]
    kinds_of_rows = {name: kinds[name] for name in kinds if name not in weights}
    uplink = {}
    with communicator.collective_block() if kinds_of_rows else nullcontext():
        for name, (width, dtype) in kinds_of_rows.items():
            mine = np.empty((0, width), dtype)
            if name in rows:
                mine = make_array(rows[name].tensor, communicator.takes_gpu)
            everyones = communicator.gather_rows(mine, owner, allocate_rows)
            if everyones is not None:
                uplink[name] = torch.as_tensor(everyones).cpu()
    kinds_of_means = {name: kinds[name] for name in weights}
    uplink |= average_over_ranks(communicator, added, kinds_of_means, weights)
    return uplink if communicator.is_server else None


def find_common(
    headers: Sequence[list[list[Any]]],
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the kind of each entry, and the ranks' weights of each Mean in rank order.

    All ranks with clients of the cohort have the same kinds; other ranks have empty
    headers.
    """
    kinds = [{name: kind for name, kind, *_ in header} for header in headers if header]
    if any(other != kinds[0] for other in kinds):
        raise ValueError(f"ranks send different messages: {kinds}")
    weights: dict[str, list[Any]] = {}
    for name, _, *sums_of_rank in itertools.chain(*headers):
        if sums_of_rank:
            weights.setdefault(name, []).extend(sums_of_rank)
    return kinds[0] if kinds else {}, weights


def make_array(tensor: Tensor, takes_gpu: bool) -> Array:
    """Return the rows in a form that the communicator reads.

    Rows of a GPU are copied to page-locked memory unless the communicator takes them.
    """
    tensor = tensor.detach().contiguous()
    if not (tensor.is_cuda and takes_gpu):
        return mixing.move_to_host(tensor).numpy()
    torch.cuda.synchronize(
        tensor.device
    )  # MPI does not wait for pending GPU computations
    return tensor


def choose_allocator(device: torch.device, takes_gpu: bool) -> Empty:
    """Return the function that allocates receive buffers for ``device``.

    A buffer is on the device if the communicator can write there. Otherwise a GPU gets
    page-locked memory up to ``mixing.LOCKED`` bytes, which it copies faster.
    """

    def there(shape: Any, dtype: str) -> Tensor:
        rows = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        torch.cuda.synchronize(
            device
        )  # the memory may still be in use for its earlier contents
        return rows

    def locked(shape: Any, dtype: str) -> np.ndarray:
        if np.prod(shape) * np.dtype(dtype).itemsize > mixing.LOCKED:
            return allocate_rows(shape, dtype)
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy()

    if device.type == "cpu":
        return allocate_rows
    return there if takes_gpu else locked


def allocate_rows(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Allocate rows, which may be larger than memory."""
    return mixing.get_large_memory().empty(shape, getattr(torch, dtype)).numpy()


Kind = Sequence[Any]  # the result of ``describe_mean``, or a copy from another rank
Weights = Sequence[Any]  # the result of ``sum_weights``, or a copy from another rank


def describe_mean(mean: Mean) -> list[Any]:
    """Return the JSON-able description of a mean that is the same on all ranks.

    It has a client's shape, the type, and the number of means. The number is None for a
    single mean, which arrives as [width].
    """
    return [
        list(mean.tensor.shape[1:]),
        dtype_name(mean.tensor.dtype),
        mean.weights.shape[1] if mean.weights.dim() == 2 else None,
    ]


def sum_weights(mean: Mean) -> list[Any]:
    """Return this rank's sums of weights, one for each of the k means, and its largest
    weight.

    The result is JSON-able.
    """
    table = _table(mean).double()
    return [table.sum(dim=0).tolist(), max([0.0, *table.flatten().tolist()])]


def average_over_ranks(
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
        kinds: the kind of each mean.
        weights_by_rank: the weights of each mean, from every rank that hosts clients of it.
    """
    if not kinds:
        return {}
    parts = {name: _part(own.get(name), one) for name, one in kinds.items()}
    totals = {name: _total_weights(weights_by_rank[name]) for name in kinds}
    magnitudes = {
        name: mixing.move_to_host(sums.find_magnitudes(*part)).numpy()
        for name, part in parts.items()
    }
    units, added = {}, {}
    # Ranks wait for each other once and not again before the sums: adding takes about as
    # long on each of them, and less than another wait where models are small.
    with communicator.collective_block():
        for name, part in parts.items():
            exponents = communicator.allreduce_max_array(magnitudes[name])
            largest_weight = max(largest for _, largest in weights_by_rank[name])
            units[name] = sums.choose_units(
                torch.from_numpy(exponents), largest_weight, max(totals[name])
            )
            own_sums = mixing.move_to_host(
                sums.sum_in_units(*part, units[name])
            ).numpy()
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
    found = sums.divide_sums(added, units, totals, getattr(torch, dtype))
    return found[0] if count is None else found
