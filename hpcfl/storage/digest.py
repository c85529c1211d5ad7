"""What identifies a state: SHA-256 over named tensors, and over a whole run. All results are hexadecimal."""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
from torch import Tensor


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Over (name, dtype, shape, bytes) of each CPU tensor, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].numpy()
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def of_run(server: str, clients: Mapping[int, str]) -> str:
    """Over the server's hash and then the clients' hashes by id, each as its 32 bytes."""
    digest = hashlib.sha256(bytes.fromhex(server))
    for client in sorted(clients):
        digest.update(bytes.fromhex(clients[client]))
    return digest.hexdigest()
