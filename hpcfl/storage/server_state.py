"""The server's state in checkpoints, which all ranks write and read.

Rank 0 writes one file with the small tensors. Large tensors are divided into parts of
neighbouring rows, one file each. The ranks with clients write and read these files in
parallel, so rank 0 neither copies nor encodes a large tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.communicator import Communicator, OneProcess
from hpcfl.communication.exchange import allocate_rows
from hpcfl.communication.message import name_dtype
from hpcfl.files import heartbeat
from hpcfl.rows import mixing
from hpcfl.storage import manifest
from hpcfl.storage.manifest import FileLimits, Manifest, Part


@dataclass(frozen=True)
class Share:
    """The server's state that one rank writes.

    Attributes:
        whole: all tensors, for the digest; None on ranks other than 0.
        small: small tensors; empty on ranks other than 0.
        parts: parts that this rank writes, with their rows.
    """

    whole: dict[str, Tensor] | None
    small: dict[str, Tensor]
    parts: list[tuple[Part, np.ndarray]]


@dataclass(frozen=True)
class ReadShare:
    """The server's state that one rank has read.

    Attributes:
        small: tensors without parts; None on ranks other than 0.
        rows: rows of this rank's parts by tensor, [n, *row].
    """

    small: dict[str, Tensor] | None
    rows: dict[str, Tensor]


def is_large(shape: Sequence[int], size: int, limits: FileLimits) -> bool:
    """Return whether a tensor is stored in parts.

    Args:
        shape: shape of the tensor.
        size: size in bytes.
        limits: limits for files.
    """
    return size > limits.small and len(shape) > 1 and shape[0] > 1


def split(
    name: str, shape: Sequence[int], dtype: str, limits: FileLimits
) -> list[Part]:
    """Return the parts of a large tensor, one file each.

    Args:
        name: name of the tensor.
        shape: its shape.
        dtype: its type.
        limits: limits for files.
    """
    count, row = shape[0], list(shape[1:])
    row_bytes = prod(row) * np.dtype(dtype).itemsize
    step = limits.count_rows(count, row_bytes)
    parts = []
    for begin in range(0, count, step):
        end = min(begin + step, count)
        parts.append(Part(tensor=name, begin=begin, end=end, row=row, dtype=dtype))
    return parts


def assign_owners(count: int, size: int) -> list[int]:
    """Return the rank of each part, in turn over the ranks with clients.

    Args:
        count: number of parts.
        size: number of ranks.
    """
    workers = max(1, size - 1)
    first = size - workers
    return [first + position % workers for position in range(count)]


def distribute(
    communicator: Communicator, server: Mapping[str, Tensor] | None, limits: FileLimits
) -> Share:
    """Copy small tensors on rank 0, and send the rows of large ones to their ranks.
    Collective.

    Rank 0 keeps contiguous large CPU tensors without a copy, because ``aggregate``
    makes new tensors and changes none.

    Args:
        communicator: communicator of all ranks.
        server: tensors on any device; None on ranks other than 0.
        limits: limits for files.

    Raises:
        RunFailure: $TMPDIR is full.
    """
    memory = mixing.get_large_memory()
    large, small = {}, {}
    for name, tensor in (server or {}).items():
        if not is_large(tensor.shape, tensor.nbytes, limits):
            small[name] = memory.copy(tensor)
        elif tensor.is_cuda or not tensor.is_contiguous():
            large[name] = memory.copy(tensor)
        else:
            large[name] = tensor.detach()
    heads = [
        [name, list(tensor.shape), name_dtype(tensor.dtype)]
        for name, tensor in large.items()
    ]
    parts = []
    for name, shape, dtype in communicator.bcast(heads):
        of_tensor = split(name, shape, dtype, limits)
        parts += _scatter(communicator, of_tensor, large.get(name))
    whole = None if server is None else small | large
    return Share(whole, small, parts)


def _scatter(
    communicator: Communicator, parts: list[Part], tensor: Tensor | None
) -> list[tuple[Part, np.ndarray]]:
    """Send the parts of a tensor to their ranks; return this rank's parts with their
    rows. Collective.

    Args:
        communicator: communicator of all ranks.
        parts: all parts of the tensor.
        tensor: the tensor; None on ranks other than 0.
    """
    width = prod(parts[0].row)
    ranks = assign_owners(len(parts), communicator.size)
    owner = np.repeat(ranks, [part.rows for part in parts])
    flat = None if tensor is None else tensor.view(-1, width).numpy()
    mine = communicator.scatter_rows(
        flat, owner, width=width, dtype=parts[0].dtype, empty=allocate_rows
    )
    found, begin = [], 0
    for part, rank in zip(parts, ranks, strict=True):
        if rank == communicator.rank:
            rows = mine[begin : begin + part.rows]
            found.append((part, rows.reshape(part.rows, *part.row)))
            begin += part.rows
    return found


def read_share(folder: Path, chosen: Manifest, process: Communicator) -> ReadShare:
    """Read this rank's parts of the server's state, and on rank 0 the small tensors.

    Call ``Manifest.verify`` first.

    Args:
        folder: folder of the checkpoints.
        chosen: manifest of the checkpoint.
        process: communicator of all ranks.

    Raises:
        Damaged: A file is damaged.
        FileNotFoundError: A file is missing.
        RunFailure: $TMPDIR is full.
    """
    small = None
    if process.is_server:
        small = manifest.read_tensors(folder / chosen.server_file.name, None)
    rows = {}
    for tensor, files in chosen.parts.items():
        ranks = assign_owners(len(files), process.size)
        mine = [
            file
            for file, rank in zip(files, ranks, strict=True)
            if rank == process.rank
        ]
        _, first = files[0]
        count = sum(part.rows for _, part in mine)
        found = allocate_rows([count, *first.row], first.dtype)
        begin = 0
        for name, part in mine:
            target = found[begin : begin + part.rows]
            manifest.read_part(folder / name, part, target)
            begin += part.rows
            heartbeat.beat()
        rows[tensor] = torch.from_numpy(found)
    return ReadShare(small, rows)


def gather(
    communicator: Communicator, chosen: Manifest, read: ReadShare
) -> dict[str, Tensor] | None:
    """Return the server's state on rank 0, None on other ranks. Collective.

    Args:
        communicator: communicator of all ranks.
        chosen: manifest of the checkpoint.
        read: result of ``read_share`` for the same manifest.
    """
    large = {}
    for tensor, files in chosen.parts.items():
        ranks = assign_owners(len(files), communicator.size)
        owner = np.repeat(ranks, [part.rows for _, part in files])
        mine = read.rows[tensor]
        row = mine.shape[1:]
        flat = mine.view(len(mine), prod(row)).numpy()
        everyones = communicator.gather_rows(flat, owner, allocate_rows)
        if everyones is not None:
            rows = torch.from_numpy(everyones)
            large[tensor] = rows.view(-1, *row)
    return None if read.small is None else read.small | large


def read(folder: Path, chosen: Manifest) -> dict[str, Tensor]:
    """Return the server's state of a checkpoint, read by this process.

    Raises as ``read_share``.
    """
    alone = OneProcess()
    found = gather(alone, chosen, read_share(folder, chosen, alone))
    assert found is not None
    return found
