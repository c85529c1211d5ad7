"""Rows between the host and a GPU by way of page-locked memory, which a GPU copies
several times faster.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_host(tensor: Tensor) -> Tensor:
    """A tensor on the CPU as it is; of one on a GPU a page-locked copy."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty_like(
        tensor, device="cpu", pin_memory=True, memory_format=torch.contiguous_format
    ).copy_(tensor)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on ``device``: from the CPU to a GPU by way of page-locked memory, for
    which the host does not wait; one that lies there already, or in page-locked memory,
    directly.
    """
    if device.type == "cpu" or tensor.is_cuda or tensor.is_pinned():
        return tensor.to(device)
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
        tensor
    )
    return staged.to(device, non_blocking=True)


def stacked(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Tensors ``[*shape]``, each on the CPU or on ``device``: a copy ``[n, *shape]`` on
    ``device``.
    """
    if device.type == "cpu":
        return torch.stack([on_host(row) for row in rows])
    host = [row for row in rows if not row.is_cuda]
    if not host:
        return torch.stack(list(rows))
    staged = torch.empty(
        (len(host), *host[0].shape), dtype=host[0].dtype, pin_memory=True
    )
    arrived = iter(torch.stack(host, out=staged).to(device, non_blocking=True))
    return torch.stack([row if row.is_cuda else next(arrived) for row in rows])
