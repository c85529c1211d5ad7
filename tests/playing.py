"""A federation on the tiny data, from start to end in this process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from recorded import Recorded

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.federation import Federation
from hpcfl.simulation.prepare import Prepared, prepare
from hpcfl.simulation.signals import StopRequest
from hpcfl.simulation.timing import timed
from hpcfl.storage import digest
from hpcfl.storage.checkpoint import Checkpoints


@dataclass(frozen=True)
class Played:
    """A federation that was run: all its state, its digest and what it recorded."""

    prepared: Prepared
    server: dict[str, torch.Tensor]
    clients: dict[str, torch.Tensor]  # name → [M, …]
    digest: str
    values: dict[
        str, np.ndarray
    ]  # name → [T, …], the last row from after the last round

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Of the server and of the clients, on the CPU."""
        return {
            **{f"server {name}": tensor.cpu() for name, tensor in self.server.items()},
            **{f"client {name}": tensor.cpu() for name, tensor in self.clients.items()},
        }


def play(
    folder: Path, method: str | dict[str, Any], *arguments: Any, **sections: Any
) -> Played:
    """Play it in a new folder; the arguments are those of ``tiny.table``."""
    alone = OneProcess()
    prepared = prepare(config.parse(tiny.table(method, *arguments, **sections)), alone)
    prepared = timed(prepared, alone)
    metrics = Recorded(folder, {}, {})
    federation = Federation(
        alone,
        prepared,
        prepared.server,
        Checkpoints(folder / "checkpoints", alone),
        metrics,
        {},
        lambda round, values: None,
    )
    federation.run(0, StopRequest(lambda: None))
    store = prepared.store
    return Played(
        prepared,
        federation.server,
        store.get(store.ids),
        digest.of_run(digest.of_tensors(federation.server), [store.snapshot().digests]),
        metrics.values(),
    )
