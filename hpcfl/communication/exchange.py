"""Messages between ranks: rows go to the rank that hosts their client and come back in client order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.communicator import Array, Communicator, Empty
from hpcfl.communication.message import Inbox, Message, Pool, fields, unwrap
from hpcfl.communication.placement import Placement
from hpcfl.files import scratch


def send(communicator: Communicator, placement: Placement, ids: np.ndarray, message: Message | None,
         device: torch.device) -> tuple[Inbox, float]:
    """Collective. Sends rank 0's message to the clients ``ids``; returns the inbox of those on this rank.

    In the inbox a field with a row for each client has this rank's rows, in the order of ``ids``; a shared
    one is [width]; a pool has all its rows and the picks of this rank's clients. Tensors lie on ``device``.
    The second result is how many floats a client gets on average, as the method counts them; 0 on the other
    ranks.

    message: None on the other ranks.
    """
    outgoing = fields(message) if message is not None else {}
    pools = {name: len(value.rows) for name, value in (message or {}).items() if isinstance(value, Pool)}
    arrays = {name: _array(field.tensor, communicator.takes_gpu) for name, field in outgoing.items()}
    owner, arrived, empty = placement.owner[ids], {}, _landing(device, communicator.takes_gpu)
    with communicator.together():
        header, pools = communicator.share([[[name, field.shared, field.tensor.shape[-1],
                                              _dtype_name(field.tensor)]
                                             for name, field in outgoing.items()], pools])
        for name, shared, width, dtype in header:
            received = (communicator.broadcast(arrays.get(name), width, dtype, empty) if shared
                        else communicator.scatter(arrays.get(name), owner, width, dtype, empty))
            arrived[name] = torch.as_tensor(received).to(device)
    floats = sum(float(np.mean(np.asarray(field.logical_floats(), dtype=float)))
                 for field in outgoing.values())
    return unwrap(arrived, pools), floats


def header(message: Message) -> list[list[Any]]:
    """What ``gather`` needs to know of this rank's message, JSON-able: name, width and type of its fields."""
    return [[name, field.tensor.shape[1], _dtype_name(field.tensor)]
            for name, field in fields(message).items()]


def gather(communicator: Communicator, placement: Placement, ids: np.ndarray, message: Message,
           headers: Sequence[list[list[Any]]]) -> dict[str, Tensor] | None:
    """Collective. The messages of the clients ``ids``: on rank 0 tensors ``[n, width]`` by name, else None.

    Rows are in the order of ``ids``; the tensors lie on the CPU.

    message: what the clients on this rank send, in the order of ``ids``; empty where it hosts none of them.
    headers: the ``header`` of every rank's message, by rank.
    Raises ValueError where ranks send different fields.
    """
    arrays = {name: _array(field.tensor, communicator.takes_gpu) for name, field in fields(message).items()}
    owner, uplink = placement.owner[ids], {}
    with communicator.together():
        for name, width, dtype in _common(headers):
            total = communicator.gather(arrays[name] if name in arrays else np.empty((0, width), dtype),
                                        owner, _scratch)
            if total is not None:
                uplink[name] = torch.as_tensor(total).cpu()
    return uplink if communicator.is_server else None


def _common(headers: Sequence[list[list[Any]]]) -> list[list[Any]]:
    """The header that all ranks with clients of the cohort have in common; the others' are empty."""
    sent = [header for header in headers if header]
    if any(header != sent[0] for header in sent):
        raise ValueError(f"ranks send different messages: {sent}")
    return sent[0] if sent else []


def _array(tensor: Tensor, takes_gpu: bool) -> Array:
    """The rows as MPI can read them: where they are, or else copied from a GPU into page-locked memory."""
    tensor = tensor.detach().contiguous()
    if not tensor.is_cuda:
        return tensor.numpy()
    if not takes_gpu:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor).numpy()
    torch.cuda.synchronize(tensor.device)  # MPI knows nothing of what is still being computed
    return tensor


def _landing(device: torch.device, takes_gpu: bool) -> Empty:
    """Makes what rows for ``device`` are received in.

    It lies there if MPI can write to it; else in memory that is page-locked for a GPU, which copies faster
    from it.
    """
    def there(shape: Any, dtype: str) -> Tensor:
        rows = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        torch.cuda.synchronize(device)  # the memory may still be in use for what it was before
        return rows

    def locked(shape: Any, dtype: str) -> np.ndarray:
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy()

    return np.empty if device.type == "cpu" else there if takes_gpu else locked


def _scratch(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Makes what uploads are received in: a matrix that may be larger than memory."""
    return scratch.empty(shape, getattr(torch, dtype)).numpy()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
