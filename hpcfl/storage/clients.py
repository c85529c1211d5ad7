"""Private state of one rank's clients, and digests of states.

State is stored on the GPU up to a limit, then in memory up to a limit, then in files in
$TMPDIR. Digests are SHA-256 in hexadecimal digits.
"""

import hashlib
import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import torch
from torch import Tensor

from hpcfl.files.scratch import Scratch
from hpcfl.rows import mixing

CPU = torch.device("cpu")
SLAB_BYTES = 1 << 24  # size of one allocation of rows
ALIGNED = 16  # bytes, the largest alignment of any dtype


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of CPU tensors: of the name, dtype, shape and bytes of each,
    sorted by name.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].numpy()
        header = json.dumps([name, array.dtype.name, array.shape])
        digest.update(header.encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class ClientDigests:
    """Digests of clients' states; clients without own state share the template's
    digest.

    Attributes:
        ids: ids of the clients, int64 [n], ascending.
        template: digest of all clients that are not in ``written``.
        written: digests of the other clients, by id.
    """

    ids: np.ndarray
    template: str
    written: Mapping[int, str]


def digest_run(server: str, clients: Sequence[ClientDigests]) -> str:
    """Return the digest of a run: of the server's digest and then the clients' by id.

    Each digest contributes 32 bytes.

    Args:
        server: digest of the server's state.
        clients: digests of the clients of each rank.
    """
    all_ids = np.sort(np.concatenate([part.ids for part in clients]), kind="stable")
    rows = np.empty((len(all_ids), 32), np.uint8)
    for part in clients:
        all_rows = np.searchsorted(all_ids, part.ids)
        rows[all_rows] = _decode(part.template)
        written_rows = np.searchsorted(all_ids, list(part.written))
        rows[written_rows] = _decode("".join(part.written.values()))
    digest = hashlib.sha256(bytes.fromhex(server))
    digest.update(rows.data)
    return digest.hexdigest()


def _decode(digests: str) -> np.ndarray:
    """Return concatenated digests as bytes, uint8 [n, 32]."""
    return np.frombuffer(bytes.fromhex(digests), np.uint8).reshape(-1, 32)


class Row:
    """The state of one client.

    Its tensors never change; a new state makes a new row. All clients without own state
    share the template's row.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state
        self.size = sum(tensor.nbytes for tensor in state.values())  # bytes

    @property
    def on_gpu(self) -> bool:
        return any(tensor.is_cuda for tensor in self.state.values())

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the state as CPU tensors."""
        return {
            name: mixing.move_to_host(tensor) for name, tensor in self.state.items()
        }

    @cached_property
    def digest(self) -> str:
        """Return the digest of the state, computed once."""
        return digest_tensors(self.tensors)


class RowMemory:
    """CPU memory for rows with the tensors of ``template``; memory of unused rows is
    reused.
    """

    def __init__(
        self, template: Mapping[str, Tensor], memory: Scratch, clients: int
    ) -> None:
        self._template, self._memory = template, memory
        self._size = sum(_align(tensor.nbytes) for tensor in template.values())
        self._slab_rows = min(clients, max(1, SLAB_BYTES // max(1, self._size)))
        self._free: list[np.ndarray] = []

    def copy(self, row: Mapping[str, Tensor]) -> Row:
        """Return a row with copies of CPU tensors. Raises RunFailure if $TMPDIR is
        full.
        """
        place = self._take()
        start, state = 0, {}
        for name, like in self._template.items():
            part = place[start : start + like.nbytes]
            state[name] = part.view(like.dtype).view(like.shape).copy_(row[name])
            start += _align(like.nbytes)
        return Row(state)

    def _take(self) -> Tensor:
        """Return free memory, uint8 [size]; it is free again once the tensor is unused."""
        if not self._free:
            slab = self._memory.empty_bytes(self._slab_rows * self._size)
            self._free.extend(slab.reshape(self._slab_rows, self._size))
        place = self._free.pop()
        used = place[:]
        weakref.finalize(used, self._free.append, place)
        return torch.from_numpy(used)


@dataclass(frozen=True)
class Snapshot:
    """Rows of one rank's clients at one moment.

    Attributes:
        ids: ids of the clients, int64 [n], ascending.
        written: rows of clients with own state, by id.
        template: row of all other clients.
    """

    ids: np.ndarray
    written: Mapping[int, Row]
    template: Row

    @property
    def digests(self) -> ClientDigests:
        """Return the digests of all rows; each is computed once."""
        written = {client: row.digest for client, row in self.written.items()}
        return ClientDigests(self.ids, self.template.digest, written)


class ClientStore:
    """Private state of clients by id.

    Clients whose state was never put share one row, the template.
    """

    def __init__(
        self,
        ids: Iterable[int],
        template: Mapping[str, Tensor],
        memory: float = inf,
        gpu_memory: float = 0,
    ) -> None:
        """Create a store in which each client has the state ``template``.

        Args:
            ids: ids of the clients.
            template: state of ONE client, name → tensor [*shape] on any device; its
                tensors must not change.
            memory: largest size of all rows in memory, in bytes; further rows are
                stored in files.
            gpu_memory: largest size of all rows on the GPU, in bytes; further rows are
                stored in memory.
        """
        self._template_row = Row(
            {name: _move_whole(tensor) for name, tensor in template.items()}
        )
        self.template = self._template_row.tensors
        self._ids = np.sort(np.fromiter(ids, np.int64))
        self._written: dict[int, Row] = {}
        self._memory, self._gpu_memory = memory, gpu_memory
        self._gpu_left = gpu_memory
        self._rows = RowMemory(self.template, Scratch(memory), len(self._ids))

    @property
    def ids(self) -> list[int]:
        """Return the ids of this rank's clients, ascending."""
        ids: list[int] = self._ids.tolist()
        return ids

    def is_hosted(self, ids: np.ndarray) -> np.ndarray:
        """Return whether each of the ``ids`` [n] is a client of this rank, bool [n]."""
        places = np.searchsorted(self._ids, ids)
        among = places < len(self._ids)
        among[among] = self._ids[places[among]] == ids[among]
        return among

    def get(self, ids: Sequence[int], device: torch.device = CPU) -> dict[str, Tensor]:
        """Return copies of the state of n clients.

        Args:
            ids: ids of the clients.
            device: device of the copies.

        Returns:
            Tensors [n, *shape] by name.

        Raises:
            ValueError: A client belongs to another rank.
            RunFailure: A file cannot be read.
        """
        self._check_ids(ids)
        if not ids:
            return {
                name: empty.new_empty((0, *empty.shape), device=device)
                for name, empty in self.template.items()
            }
        rows = [self._written.get(client, self._template_row).state for client in ids]
        return {
            name: mixing.stack_on_device([row[name] for row in rows], device)
            for name in self.template
        }

    def put(self, ids: Sequence[int], state: Mapping[str, Tensor]) -> None:
        """Replace the whole state of n clients.

        Args:
            ids: ids of the clients.
            state: tensors [n, *shape] by name, as from ``get``, on any device.

        Raises:
            ValueError: A client belongs to another rank, or the state does not match
                the template.
            RunFailure: The file system is full.
        """
        self._check_ids(ids)
        self._check_state(len(ids), state)
        if not self.template:
            return  # an empty state needs no rows
        self.forget(ids)
        size = sum(tensor.nbytes for tensor in state.values())
        on_gpu = any(tensor.is_cuda for tensor in state.values())
        stays = on_gpu and size <= self._gpu_left
        if stays:
            self._gpu_left -= size
        else:
            state = {
                name: mixing.move_to_host(tensor) for name, tensor in state.items()
            }
        for position, client in enumerate(ids):
            row = {name: tensor.detach()[position] for name, tensor in state.items()}
            if stays:
                copies = {name: tensor.clone() for name, tensor in row.items()}
                self._written[client] = Row(copies)
            else:
                self._written[client] = self._rows.copy(row)

    def forget(self, ids: Iterable[int]) -> None:
        """Reset clients to the template's state."""
        for client in ids:
            row = self._written.pop(client, None)
            if row is not None and row.on_gpu:
                self._gpu_left += row.size

    def make_like(self, template: Mapping[str, Tensor]) -> "ClientStore":
        """Return a new store with other state for the same clients, with the same
        limits.
        """
        return ClientStore(self._ids, template, self._memory, self._gpu_memory)

    def snapshot(self) -> Snapshot:
        """Return the current rows of all clients; later calls of ``put`` do not change
        them.

        No tensor is copied.
        """
        return Snapshot(self._ids, dict(self._written), self._template_row)

    def _check_ids(self, ids: Sequence[int]) -> None:
        asked = np.asarray(ids, np.int64)
        others = asked[~self.is_hosted(asked)].tolist()
        if others:
            raise ValueError(f"clients {others[:5]} are not on this rank")

    def _check_state(self, count: int, state: Mapping[str, Tensor]) -> None:
        """Raise ValueError for a state that does not match the template.

        Args:
            count: number of clients.
            state: their state, tensors [count, *shape] by name.
        """
        if state.keys() != self.template.keys():
            raise ValueError(
                f"fleet.state has {sorted(state)}; expected {sorted(self.template)}"
            )
        for name, tensor in state.items():
            expected = (self.template[name].dtype, (count, *self.template[name].shape))
            if (tensor.dtype, tuple(tensor.shape)) != expected:
                raise ValueError(
                    f"fleet.state['{name}'] is {tensor.dtype} of shape {list(tensor.shape)}; "
                    f"a row for each client is {expected[0]} of shape {list(expected[1])}"
                )


def _move_whole(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, copied if it is a part of a larger one."""
    moved = tensor.detach().cpu()
    is_whole = moved.untyped_storage().nbytes() == moved.nbytes
    return moved if is_whole else moved.clone()


def _align(size: int) -> int:
    """Return ``size`` rounded up to a multiple of ALIGNED bytes."""
    return -(-size // ALIGNED) * ALIGNED
