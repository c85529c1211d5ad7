"""The placement of clients on ranks, and the exchange of messages between ranks.

Every rank computes the placement itself. The server's rows are sent to the ranks of the
clients. The clients' rows are gathered in client order, or as their mean.

A mean has the same bits for any number of ranks. Each rank adds the rows of its own
clients, so one row is sent per rank instead of one per client. The ranks first agree on
the magnitude of each column, which determines the column's unit. Then they add whole
numbers of units (``rows/sums.py``).
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    Pool,
    describe_composed,
    name_dtype,
    split,
    unwrap,
)
from hpcfl.rows import mixing, sums

# Shape and name of the dtype of an entry, see ``Header``; received as a list.
Kind = tuple[list[int], str]
# Sums and largest of a Mean's weights, see ``Header``; received as a list.
Weights = tuple[list[float], float]


@dataclass(frozen=True)
class Placement:
    """The rank of each client, fixed for a run.

    Attributes:
        owner: rank of each client, [clients].
        size: number of ranks.
    """

    owner: np.ndarray
    size: int

    def list_clients(self, rank: int) -> np.ndarray:
        """Return the ids of a rank's clients, ascending."""
        return np.flatnonzero(self.owner == rank)

    @property
    def idle(self) -> list[int]:
        """Return the worker ranks without clients."""
        return [rank for rank in range(1, self.size) if rank not in self.owner]


def place(
    cost: Sequence[float], size: int, kind: Sequence[Any] | None = None
) -> Placement:
    """Place clients on the worker ranks 1 … size − 1, or on rank 0 without workers.

    Clients are assigned in the order of their costs, largest first, each to the least
    loaded worker. This keeps the slowest rank within 4/3 of the optimum (Graham, 1969).
    Ties go to the lower client id and the lower rank, so the result depends only on the
    arguments. Clients of equal cost are then exchanged so that clients of one kind
    share ranks; loads do not change.

    Args:
        cost: number of local steps of each client in an epoch.
        size: number of ranks.
        kind: sortable value of each client; without it no clients are exchanged.
    """
    workers = range(1, size) if size > 1 else range(1)
    loads = [(0.0, rank) for rank in workers]
    owner = np.zeros(len(cost), dtype=np.int64)
    for client in sorted(range(len(cost)), key=lambda client: (-cost[client], client)):
        load, rank = heapq.heappop(loads)
        owner[client] = rank
        heapq.heappush(loads, (load + cost[client], rank))
    if kind is not None:
        order = sorted(
            range(len(cost)), key=lambda client: (cost[client], kind[client], client)
        )
        for _, equals in itertools.groupby(order, key=lambda client: cost[client]):
            clients = list(equals)
            owner[clients] = np.sort(owner[clients])
    return Placement(owner, size)


def send(
    communicator: Communicator,
    placement: Placement,
    ids: np.ndarray,
    message: Message,
    device: torch.device,
) -> tuple[Inbox, float]:
    """Send rank 0's message to some clients. Collective call.

    A field with a row for each client is received as the rows of this rank's clients,
    in the order of ``ids``; so is a mixture. A shared field is received as [width]. A
    pool has all its rows, on the CPU, and the picks of this rank's clients.

    Args:
        communicator: communicator of all ranks.
        placement: rank of each client.
        ids: ids of the clients.
        message: message on rank 0; {} on other ranks.
        device: device of the received tensors.

    Returns:
        This rank's inbox, and the mean number of floats per client, as the method
        counts them (0 on other ranks than 0).
    """
    lighter: dict[str, Any] = {}
    for name, value in message.items():
        if isinstance(value, Mixture):
            value = choose_lighter(value, communicator.size)
        lighter[name] = value
    outgoing, _ = split(lighter)
    rows, header = {}, []
    for name, field in outgoing.items():
        rows[name] = make_array(field.tensor, communicator.takes_gpu)
        place = "cpu" if isinstance(lighter.get(name), Pool) else None
        dtype = name_dtype(field.tensor.dtype)
        header.append([name, place, field.shared, field.tensor.shape[-1], dtype])
    owner, arrived = placement.owner[ids], {}
    with communicator.collective_block():
        header, composed = communicator.bcast([header, describe_composed(lighter)])
        for name, place, shared, width, dtype in header:
            own, target = rows.get(name), torch.device(place or device)
            empty = choose_allocator(target, communicator.takes_gpu)
            if shared:
                received = communicator.bcast_row(own, width, dtype, empty)
            else:
                received = communicator.scatter_rows(
                    own, owner, width=width, dtype=dtype, empty=empty
                )
            arrived[name] = mixing.move_to_device(torch.as_tensor(received), target)
    return unwrap(arrived, composed), count_floats(lighter)


def count_floats(message: Message) -> float:
    """Return the mean number of floats that the server sends to a client.

    The number follows the method's own count.
    """
    total = 0.0
    outgoing, _ = split(message)
    for one in outgoing.values():
        total += float(np.mean(np.asarray(one.count_floats(), dtype=float)))
    return total


def choose_lighter(mixture: Mixture, size: int) -> Mixture | Field:
    """Return the form of a mixture with fewer bytes: the mixture, or each client's row.

    Args:
        mixture: mixture to send.
        size: number of ranks.
    """
    own = len(mixture.weights) * mixture.rows.shape[1] * mixture.dtype.itemsize
    models = max(1, size - 1) * mixture.rows.nbytes + mixture.weights.nbytes
    return mixture if models < own else Field(mixture.mix())


class Header(NamedTuple):
    """Description of a rank's message for ``gather``, sent to other ranks as JSON.

    Attributes:
        kinds: shape and type, by name, of the tensor that rank 0 receives. A mean is
            [width] or [k, width]; the shape of rows is [0, width], without any client.
            All ranks with clients of the cohort have equal kinds.
        weights: for each Mean by name, this rank's sums of weights for the k means, and
            its largest weight.
    """

    kinds: dict[str, Kind]
    weights: dict[str, Weights]


def make_header(message: Message) -> Header:
    """Return the description of this rank's message."""
    rows, added = split(message)
    header = Header({}, {})
    for name, field in rows.items():
        shape = [0, field.tensor.shape[1]]
        header.kinds[name] = shape, name_dtype(field.tensor.dtype)
    for name, mean in added.items():
        shape = [*mean.weights.shape[1:], mean.tensor.shape[-1]]
        header.kinds[name] = shape, name_dtype(mean.tensor.dtype)
        table = _make_table(mean).double()
        largest = max([0.0, *table.flatten().tolist()])
        header.weights[name] = table.sum(dim=0).tolist(), largest
    return header


def make_empty_uplink(kinds: Mapping[str, Kind]) -> dict[str, Tensor]:
    """Return the messages that rank 0 receives from a cohort without clients.

    There are no rows, and means are zero.

    Args:
        kinds: kinds of a client's message, as in ``Header``.
    """
    uplink = {}
    for name, (shape, dtype) in kinds.items():
        uplink[name] = torch.zeros(shape, dtype=getattr(torch, dtype))
    return uplink


def gather(
    communicator: Communicator,
    placement: Placement,
    ids: np.ndarray,
    message: Message,
    headers: Sequence[Header],
) -> dict[str, Tensor] | None:
    """Gather the messages of some clients on rank 0. Collective call.

    Args:
        communicator: communicator of all ranks.
        placement: rank of each client.
        ids: ids of the clients.
        message: messages of this rank's clients, in the order of ``ids``; empty if none
            of them is on this rank.
        headers: result of ``make_header`` for every rank's message, by rank.

    Returns:
        On rank 0 tensors by name, on the CPU: a field as ``[n, width]`` with rows in
            the order of ``ids``, a Mean as ``[width]`` or ``[k, width]``. None on other
            ranks.

    Raises:
        ValueError: Ranks send different fields.
    """
    rows, added = split(message)
    kinds, weights = find_common(headers)
    owner = placement.owner[ids]
    kinds_of_rows = {name: kinds[name] for name in kinds if name not in weights}
    uplink = {}
    with communicator.collective_block() if kinds_of_rows else nullcontext():
        for name, ((_, width), dtype) in kinds_of_rows.items():
            mine = np.empty((0, width), dtype)
            if name in rows:
                mine = make_array(rows[name].tensor, communicator.takes_gpu)
            everyones = communicator.gather_rows(mine, owner, allocate_rows)
            if everyones is not None:
                uplink[name] = torch.as_tensor(everyones).cpu()
    uplink |= average_over_ranks(communicator, added, kinds, weights)
    return uplink if communicator.is_server else None


def find_common(
    headers: Sequence[Header],
) -> tuple[dict[str, Kind], dict[str, list[Weights]]]:
    """Return the kind of each entry, and the ranks' weights of each Mean in rank order.

    Ranks without clients of the cohort have empty headers.

    Raises:
        ValueError: Ranks send entries of different kinds.
    """
    known = [kinds for kinds, _ in headers if kinds]
    if any(kinds != known[0] for kinds in known):
        raise ValueError(f"ranks send different messages: {known}")
    weights_by_rank: dict[str, list[Weights]] = {}
    for _, weights in headers:
        for name, of_rank in weights.items():
            weights_by_rank.setdefault(name, []).append(of_rank)
    return known[0] if known else {}, weights_by_rank


def make_array(tensor: Tensor, takes_gpu: bool) -> Array:
    """Return rows in a form that the communicator can read.

    Rows on a GPU are copied to page-locked memory unless the communicator accepts them.
    """
    tensor = tensor.detach().contiguous()
    if not (tensor.is_cuda and takes_gpu):
        return mixing.move_to_host(tensor).numpy()
    torch.cuda.synchronize(tensor.device)  # MPI does not wait for the GPU
    return tensor


def choose_allocator(device: torch.device, takes_gpu: bool) -> Empty:
    """Return the function that allocates receive buffers for ``device``.

    A buffer is on the device if the communicator can write there. Otherwise the buffer
    for a GPU is in page-locked memory, up to ``mixing.LOCKED`` bytes, from which copies
    are faster.
    """

    def allocate_there(shape: Any, dtype: str) -> Tensor:
        rows = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        torch.cuda.synchronize(device)  # pending GPU work may still use this memory
        return rows

    def allocate_locked(shape: Any, dtype: str) -> np.ndarray:
        if np.prod(shape) * np.dtype(dtype).itemsize > mixing.LOCKED:
            return allocate_rows(shape, dtype)
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy()

    if device.type == "cpu":
        return allocate_rows
    return allocate_there if takes_gpu else allocate_locked


def allocate_rows(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Allocate rows, which may be larger than memory."""
    return mixing.get_large_memory().empty(shape, getattr(torch, dtype)).numpy()


def average_over_ranks(
    communicator: Communicator,
    own: Mapping[str, Mean],
    kinds: Mapping[str, Kind],
    weights_by_rank: Mapping[str, Sequence[Weights]],
) -> dict[str, Tensor]:
    """Return means over the clients of all ranks. Collective call.

    Args:
        communicator: communicator of all ranks.
        own: means over this rank's clients by name; empty without clients of the
            cohort.
        kinds: kind of each entry, as in ``Header``.
        weights_by_rank: weights of each mean from every rank with clients of the
            cohort.

    Returns:
        Means by name, ``[width]`` or ``[k, width]``, on rank 0's CPU; {} on other
        ranks.
    """
    if not weights_by_rank:
        return {}
    parts = {name: _select_part(own.get(name), kinds[name]) for name in weights_by_rank}
    totals = {name: _add_weights(one) for name, one in weights_by_rank.items()}
    magnitudes = {
        name: mixing.move_to_host(sums.find_magnitudes(*part)).numpy()
        for name, part in parts.items()
    }
    units, added = {}, {}
    # Ranks wait for each other only once. Before the sums they need not wait again: the
    # additions take a similar time on all ranks, for small models less than a wait.
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
        name: _divide(torch.from_numpy(values), units[name], totals[name], kinds[name])
        for name, values in added.items()
        if values is not None
    }


def _add_weights(weights_by_rank: Sequence[Weights]) -> list[float]:
    """Return the sum of all ranks' weights for each of the k means."""
    sums_of_ranks = [of_rank for of_rank, _ in weights_by_rank]
    return [sum(of_mean) for of_mean in zip(*sums_of_ranks, strict=True)]


def _make_table(mean: Mean) -> Tensor:
    """Return the weights [n, k] on the CPU."""
    weights = mean.weights
    if weights.dim() == 1:
        weights = weights[:, None]
    return weights.cpu()


def _select_part(mean: Mean | None, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return this rank's rows and weights [n, k].

    Without ``mean``, on a rank without clients of the cohort, n is 0.
    """
    if mean is not None:
        return mean.tensor.detach(), _make_table(mean)
    (*several, width), dtype = kind
    no_rows = torch.empty(0, width, dtype=getattr(torch, dtype))
    return no_rows, torch.empty(0, *(several or [1]))


def _divide(
    added: Tensor, units: Tensor, totals: Sequence[float], kind: Kind
) -> Tensor:
    """Return the mean, [k, width] or [width] depending on ``kind``.

    It has the type of the rows.

    Args:
        added: sums over all ranks in whole units.
        units: exponents of the units.
        totals: sums of all weights, [k].
        kind: kind of the mean.
    """
    shape, dtype = kind
    return sums.divide_sums(added, units, totals, getattr(torch, dtype)).view(shape)
