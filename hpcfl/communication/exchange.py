"""Messages over the communicator: rows go to the rank that hosts their client and come back
in client order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.communicator import Array, Communicator, Empty
from hpcfl.communication.message import Inbox, Message, Pool, fields, unwrap
from hpcfl.communication.placement import Placement
from hpcfl.files import scratch
from hpcfl.rows import pinned


def send(communicator: Communicator, placement: Placement, ids: np.ndarray, message: Message | None,
         device: torch.device) -> tuple[Inbox, float]:
    """Rank 0's message to the clients ``ids``: the fields for this rank's clients, and the floats per client.

    A field of per-client rows arrives as [n_local, width] in ascending client order, a shared one as [width],
    a pool with all its rows and the picks of this rank's clients.
    """
    own = fields(message) if message is not None else {}
    pools = {name: len(value.rows) for name, value in (message or {}).items() if isinstance(value, Pool)}
    arrays = {name: _array(field.tensor, communicator.takes_gpu) for name, field in own.items()}
    owner, arrived, empty = placement.owner[ids], {}, _landing(device, communicator.takes_gpu)
    with communicator.together():
        header, pools = communicator.share([[[name, field.shared, field.tensor.shape[-1],
                                              _dtype_name(field.tensor)]
                                             for name, field in own.items()], pools])
        for name, shared, width, dtype in header:
            received = (communicator.broadcast(arrays.get(name), width, dtype, empty) if shared
                        else communicator.scatter(arrays.get(name), owner, width, dtype, empty))
            arrived[name] = pinned.on_device(torch.as_tensor(received), device)
    floats = sum(float(np.mean(np.asarray(field.logical_floats(), dtype=float))) for field in own.values())
    return unwrap(arrived, pools), floats


def header(message: Message) -> list[list[Any]]:
    """What ``gather`` needs to know of every rank's message, JSON-able."""
    return [[name, field.tensor.shape[1], _dtype_name(field.tensor)]
            for name, field in fields(message).items()]


def gather(communicator: Communicator, placement: Placement, ids: np.ndarray, message: Message,
           headers: Sequence[list[list[Any]]]) -> dict[str, Tensor] | None:
    """The workers' messages of the clients ``ids``, rows [n, width] in the order of ``ids``, on rank 0's
    CPU; else None.

    headers: of the messages, by rank.
    """
    own = fields(message)
    arrays = {name: _array(field.tensor, communicator.takes_gpu) for name, field in own.items()}
    owner, uplink = placement.owner[ids], {}
    with communicator.together():
        for name, width, dtype in _common(headers):
            total = communicator.gather(arrays[name] if name in arrays else np.empty((0, width), dtype),
                                        owner, _scratch)
            if total is not None:
                uplink[name] = torch.as_tensor(total).cpu()
    return uplink if communicator.is_server else None


def _common(headers: Sequence[list[list[Any]]]) -> list[list[Any]]:
    """What the ranks that host clients of the cohort send; ranks without any send no fields."""
    sent = [header for header in headers if header]
    if any(header != sent[0] for header in sent):
        raise ValueError(f"ranks send different messages: {sent}")
    return sent[0] if sent else []


def _array(tensor: Tensor, takes_gpu: bool) -> Array:
    """What MPI reads: the rows where they are if it can, else a copy in page-locked memory."""
    tensor = tensor.detach().contiguous()
    if not (tensor.is_cuda and takes_gpu):
        return pinned.on_host(tensor).numpy()
    torch.cuda.synchronize(tensor.device)  # MPI knows nothing of what is still being computed
    return tensor


def _landing(device: torch.device, takes_gpu: bool) -> Empty:
    """Makes what rows for ``device`` arrive in: there if MPI can, else page-locked, from where a GPU
    copies faster."""
    def there(shape: Any, dtype: str) -> Tensor:
        rows = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        torch.cuda.synchronize(device)  # the memory may still be in use for what it was before
        return rows

    def locked(shape: Any, dtype: str) -> np.ndarray:
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy()

    return np.empty if device.type == "cpu" else there if takes_gpu else locked


def _scratch(shape: Sequence[int], dtype: str) -> np.ndarray:
    return scratch.empty(shape, getattr(torch, dtype)).numpy()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
