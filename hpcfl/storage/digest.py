"""Digests that identify a state: hexadecimal SHA-256 of named tensors or of a whole
run.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of CPU tensors, over the name, dtype, shape and bytes of each.

    The names are sorted.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].numpy()
        header = json.dumps([name, array.dtype.name, array.shape])
        digest.update(header.encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class OfClients:
    """Digests of clients' states, most of which may be the template's.

    Attributes:
        ids: The clients, int64 [n], ascending.
        template: The digest of all clients that are not ``written``.
        written: The digests of the others, by id.
    """

    ids: np.ndarray
    template: str
    written: Mapping[int, str]


def of_run(server: str, clients: Sequence[OfClients]) -> str:
    """Return the digest of a run: over the server's digest and then the clients' by id.

    Each digest counts 32 bytes. clients: those of each rank.
    """
    everybody = np.sort(np.concatenate([part.ids for part in clients]), kind="stable")
    rows = np.empty((len(everybody), 32), np.uint8)
    for part in clients:
        all_rows = np.searchsorted(everybody, part.ids)
        rows[all_rows] = _bytes(part.template)
        written_rows = np.searchsorted(everybody, list(part.written))
        rows[written_rows] = _bytes("".join(part.written.values()))
    digest = hashlib.sha256(bytes.fromhex(server))
    digest.update(rows.data)
    return digest.hexdigest()


def _bytes(digests: str) -> np.ndarray:
    """Return digests one after the other as bytes, uint8 [n, 32]."""
    return np.frombuffer(bytes.fromhex(digests), np.uint8).reshape(-1, 32)
