"""Digests, which identify a state: SHA-256 over named tensors or over a whole run,
hexadecimal.
"""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
from torch import Tensor


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The digest of CPU tensors: over each one's name, dtype, shape and bytes, sorted
    by name.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].numpy()
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_run(server: str, clients: Mapping[int, str]) -> str:
    """The digest of a run: over the server's digest and then the clients' by id, as 32
    bytes each.
    """
    digest = hashlib.sha256(bytes.fromhex(server))
    for client in sorted(clients):
        digest.update(bytes.fromhex(clients[client]))
    return digest.hexdigest()
