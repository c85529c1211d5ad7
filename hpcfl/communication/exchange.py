"""Messages between ranks: rows go to the rank that hosts their client.

They come back in client order, or as their mean.
"""

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication import means
from hpcfl.communication.communicator import Array, Communicator, Empty
from hpcfl.communication.message import (
    Field,
    Inbox,
    Message,
    Mixture,
    composed,
    dtype_name,
    split,
    unwrap,
)
from hpcfl.communication.placement import Placement
from hpcfl.files import scratch
from hpcfl.rows import pinned


def send(
    communicator: Communicator,
    placement: Placement,
    ids: np.ndarray,
    message: Message | None,
    device: torch.device,
) -> tuple[Inbox, float]:
    """Collective. Sends rank 0's message to the clients ``ids``; returns the inbox of
    those on this rank.

    In the inbox a field with a row for each client has this rank's rows, in the order
    of ``ids``, and so has a mixture; a shared field is [width]; a pool has all its rows
    and the picks of this rank's clients. Tensors lie on ``device``. The second result
    is how many floats a client gets on average, as the method counts them; 0 on the
    other ranks.

    message: None on the other ranks.
    """
    message = {
        name: _lighter(value, communicator.size)
        if isinstance(value, Mixture)
        else value
        for name, value in (message or {}).items()
    }
    outgoing, _ = split(message)
    arrays = {
        name: _array(field.tensor, communicator.takes_gpu)
        for name, field in outgoing.items()
    }
    owner, arrived, empty = (
        placement.owner[ids],
        {},
        _landing(device, communicator.takes_gpu),
    )
    with communicator.collective_block():
        header, of_two = communicator.bcast(
            [
                [
                    [
                        name,
                        field.shared,
                        field.tensor.shape[-1],
                        dtype_name(field.tensor.dtype),
                    ]
                    for name, field in outgoing.items()
                ],
                composed(message),
            ]
        )
        for name, shared, width, dtype in header:
            received = (
                communicator.bcast_row(arrays.get(name), width, dtype, empty)
                if shared
                else communicator.scatter_rows(
                    arrays.get(name), owner, width, dtype, empty
                )
            )
            arrived[name] = pinned.on_device(torch.as_tensor(received), device)
    return unwrap(arrived, of_two), floats(message)


def floats(message: Message) -> float:
    """How many floats a client gets on average of what the server sends, as the method
    counts them.
    """
    total = 0.0
    outgoing, _ = split(message)
    for one in outgoing.values():
        total += float(np.mean(np.asarray(one.logical_floats(), dtype=float)))
    return total


def _lighter(mixture: Mixture, size: int) -> Mixture | Field:
    """A mixture as it is, or each client's own row: whichever of the two is fewer bytes
    to ``size`` ranks.
    """
    own = len(mixture.weights) * mixture.rows.shape[1] * mixture.dtype.itemsize
    models = max(1, size - 1) * mixture.rows.nbytes + mixture.weights.nbytes
    return mixture if models < own else Field(mixture.mixed())


def header(message: Message) -> list[list[Any]]:
    """What ``gather`` needs to know of this rank's message, JSON-able.

    Of each entry that is its name and its kind, which is the same on all ranks: of a
    field the width and the type, of a Mean ``means.kind``. A Mean has this rank's
    ``means.weights`` in third place.
    """
    rows, added = split(message)
    return [
        *(
            [name, [field.tensor.shape[1], dtype_name(field.tensor.dtype)]]
            for name, field in rows.items()
        ),
        *(
            [name, means.kind(mean), means.weights(mean)]
            for name, mean in added.items()
        ),
    ]


def gather(
    communicator: Communicator,
    placement: Placement,
    ids: np.ndarray,
    message: Message,
    headers: Sequence[list[list[Any]]],
) -> dict[str, Tensor] | None:
    """Collective. The messages of the clients ``ids``: on rank 0 tensors by name, else
    None.

    A field arrives as ``[n, width]``, with rows in the order of ``ids``, a Mean as
    ``[width]`` or ``[k, width]``. The tensors lie on the CPU.

    Args:
        message: what the clients on this rank send, in the order of ``ids``; empty
            where it hosts none of them.
        headers: the ``header`` of every rank's message, by rank.

    Raises:
        ValueError: ranks send different fields.
    """
    rows, added = split(message)
    kinds, weights = _common(headers)
    owner = placement.owner[ids]
    kinds_of_rows = {name: kinds[name] for name in kinds if name not in weights}
    uplink = {}
    with communicator.collective_block() if kinds_of_rows else nullcontext():
        for name, (width, dtype) in kinds_of_rows.items():
            mine = np.empty((0, width), dtype)
            if name in rows:
                mine = _array(rows[name].tensor, communicator.takes_gpu)
            everyones = communicator.gather_rows(mine, owner, _scratch)
            if everyones is not None:
                uplink[name] = torch.as_tensor(everyones).cpu()
    kinds_of_means = {name: kinds[name] for name in weights}
    uplink |= means.over_ranks(communicator, added, kinds_of_means, weights)
    return uplink if communicator.is_server else None


def _common(
    headers: Sequence[list[list[Any]]],
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The kind of each entry by name, and of each Mean the weights that the ranks tell,
    in rank order.

    The kinds are the same on all ranks with clients of the cohort; the headers of the
    others are empty.
    """
    kinds = [{name: kind for name, kind, *_ in header} for header in headers if header]
    if any(other != kinds[0] for other in kinds):
        raise ValueError(f"ranks send different messages: {kinds}")
    weights: dict[str, list[Any]] = {}
    for name, _, *told in itertools.chain(*headers):
        if told:
            weights.setdefault(name, []).extend(told)
    return kinds[0] if kinds else {}, weights


def _array(tensor: Tensor, takes_gpu: bool) -> Array:
    """The rows as the communicator reads them: in their place, or copied from a GPU to
    page-locked memory.
    """
    tensor = tensor.detach().contiguous()
    if not (tensor.is_cuda and takes_gpu):
        return pinned.on_host(tensor).numpy()
    torch.cuda.synchronize(
        tensor.device
    )  # MPI knows nothing of what is still being computed
    return tensor


def _landing(device: torch.device, takes_gpu: bool) -> Empty:
    """Makes what rows for ``device`` are received in.

    It lies there if the communicator can write to it; else in memory that is
    page-locked for a GPU, which copies faster from it.
    """

    def there(shape: Any, dtype: str) -> Tensor:
        rows = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        torch.cuda.synchronize(
            device
        )  # the memory may still be in use for what it was before
        return rows

    def locked(shape: Any, dtype: str) -> np.ndarray:
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy()

    return np.empty if device.type == "cpu" else there if takes_gpu else locked


def _scratch(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Makes what uploads are received in: a matrix that may be larger than memory."""
    return scratch.empty(shape, getattr(torch, dtype)).numpy()
