"""Transfers of rows between the host and a GPU through page-locked memory.

A GPU copies page-locked memory several times faster.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_host(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU unchanged, and a page-locked copy of one on a GPU."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty_like(
        tensor, device="cpu", pin_memory=True, memory_format=torch.contiguous_format
    ).copy_(tensor)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to ``device``, without blocking the host.

    A transfer from the CPU to a GPU passes through page-locked memory. A tensor that is
    on the device already, or in page-locked memory, is moved directly.
    """
    if device.type == "cpu" or tensor.is_cuda or tensor.is_pinned():
        return tensor.to(device)
    staged = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
        tensor
    )
    return staged.to(device, non_blocking=True)


def stacked(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Stack tensors ``[*shape]``, each on the CPU or on ``device``, into ``[n,
    *shape]`` on ``device``.
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
