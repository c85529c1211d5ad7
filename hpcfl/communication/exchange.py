"""Messages between ranks: rows go to the rank that hosts their client.

They come back in client order, or as their mean.
"""

import itertools
from collections.abc import Mapping, Sequence
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
    """Collective. Sends rank 0's message to the clients ``ids``; returns the inbox of those on this rank.

    In the inbox a field with a row for each client has this rank's rows, in the order of ``ids``, and so has
    a mixture; a shared field is [width]; a pool has all its rows and the picks of this rank's clients.
    Tensors lie on ``device``. The second result is how many floats a client gets on average, as the method
    counts them; 0 on the other ranks.

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
    with communicator.together():
        header, of_two = communicator.share(
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
                communicator.broadcast(arrays.get(name), width, dtype, empty)
                if shared
                else communicator.scatter(arrays.get(name), owner, width, dtype, empty)
            )
            arrived[name] = pinned.on_device(torch.as_tensor(received), device)
    floats = sum(
        float(np.mean(np.asarray(field.logical_floats(), dtype=float)))
        for field in outgoing.values()
    )
    return unwrap(arrived, of_two), floats


def _lighter(mixture: Mixture, size: int) -> Mixture | Field:
    """A mixture as it is, or each client's own row: whichever of the two is fewer bytes to ``size`` ranks."""
    own = len(mixture.weights) * mixture.rows.shape[1] * mixture.dtype.itemsize
    models = max(1, size - 1) * mixture.rows.nbytes + mixture.weights.nbytes
    return mixture if models < own else Field(mixture.mixed())


def header(message: Message) -> list[list[Any]]:
    """What ``gather`` needs to know of this rank's message, JSON-able.

    Of each entry that is its name and its kind, which is the same on all ranks: of a field the width and the
    type, of a Mean ``means.kind``. A Mean has this rank's ``means.weights`` in third place.
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


def offer(
    communicator: Communicator, cohort: np.ndarray, ids: np.ndarray, message: Message
) -> None:
    """Begin to send the wide rows of a message, so that they travel while other ranks still train.

    Every rank calls it as soon as its clients are done, then ``landed``; no rank waits here.

    message: of the clients ``ids`` of this rank, which are among the ``cohort``.
    """
    rows, _ = split(message)
    wide = {
        name: _array(field.tensor, communicator.takes_gpu)
        for name, field in rows.items()
        if communicator.offers(field.tensor.shape[1] * field.tensor.element_size())
    }
    communicator.offer(wide, np.searchsorted(cohort, ids), len(cohort), _scratch)


def landed(
    communicator: Communicator,
    cohort: np.ndarray,
    ids: np.ndarray,
    headers: Sequence[list[list[Any]]],
) -> dict[str, Array]:
    """Collective. What the clients ``ids`` of the cohort have offered: on rank 0 ``[n, width]`` by name.

    headers: as for ``gather``, which takes the result.
    """
    found = communicator.offered(_wide(communicator, _common(headers)[0]), len(ids))
    if len(ids) < len(cohort):
        found = {
            name: rows[np.searchsorted(cohort, ids)] for name, rows in found.items()
        }
    return found


def gather(
    communicator: Communicator,
    placement: Placement,
    ids: np.ndarray,
    message: Message,
    headers: Sequence[list[list[Any]]],
    offered: Mapping[str, Array] | None = None,
) -> dict[str, Tensor] | None:
    """Collective. The messages of the clients ``ids``: on rank 0 tensors by name, else None.

    A field arrives as ``[n, width]``, with rows in the order of ``ids``, a Mean as ``[width]`` or
    ``[k, width]``. The tensors lie on the CPU.

    message: what the clients on this rank send, in the order of ``ids``; empty where it hosts none of them.
    headers: the ``header`` of every rank's message, by rank.
    offered: what ``landed`` gave, if wide rows were offered before; else they are now.
    Raises ValueError where ranks send different fields.
    """
    rows, added = split(message)
    kinds, weights = _common(headers)
    owner, there = placement.owner[ids], _wide(communicator, kinds)
    if offered is None:
        offer(communicator, ids, ids[owner == communicator.rank], message)
        offered = landed(communicator, ids, ids, headers)
    arrays = {
        name: _array(field.tensor, communicator.takes_gpu)
        for name, field in rows.items()
        if name not in there
    }
    uplink = {name: torch.as_tensor(arrived) for name, arrived in offered.items()}
    travelling = {
        name: kind
        for name, kind in kinds.items()
        if name not in weights and name not in there
    }
    with communicator.together():
        for name, (width, dtype) in travelling.items():
            total = communicator.gather(
                arrays[name] if name in arrays else np.empty((0, width), dtype),
                owner,
                _scratch,
            )
            if total is not None:
                uplink[name] = torch.as_tensor(total).cpu()
    uplink |= means.over_ranks(
        communicator, added, {name: kinds[name] for name in weights}, weights
    )
    return uplink if communicator.is_server else None


def _wide(communicator: Communicator, kinds: Mapping[str, Any]) -> list[str]:
    """The names of fields whose rows are offered. kinds: of all entries; that of a Mean has three parts."""
    return [
        name
        for name, kind in kinds.items()
        if len(kind) == 2 and communicator.offers(kind[0] * np.dtype(kind[1]).itemsize)
    ]


def _common(
    headers: Sequence[list[list[Any]]],
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The kind of each entry by name, and of each Mean the weights that the ranks tell, in rank order.

    The kinds are the same on all ranks with clients of the cohort; the headers of the others are empty.
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
    """The rows as the communicator reads them: in their place, or copied from a GPU to page-locked memory."""
    tensor = tensor.detach().contiguous()
    if not (tensor.is_cuda and takes_gpu):
        return pinned.on_host(tensor).numpy()
    torch.cuda.synchronize(
        tensor.device
    )  # MPI knows nothing of what is still being computed
    return tensor


def _landing(device: torch.device, takes_gpu: bool) -> Empty:
    """Makes what rows for ``device`` are received in.

    It lies there if the communicator can write to it; else in memory that is page-locked for a GPU, which
    copies faster from it.
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
