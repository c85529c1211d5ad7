"""Server step of a method on given clients' models: ``python server_step.py FOLDER
MEGABYTES METHOD …``.

It prints JSON for each method: seconds of ``aggregate``, of ``send`` and of the
computation of the clients' rows, which a mixture leaves to the clients' rank; and
seconds of copying all models once, the speed of the memory. With ``runtime.memory``
MEGABYTES it prints the seconds again and the memory, in MB, of steps and a checkpoint
in addition to files.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.methods.base import State
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import mixing
from hpcfl.simulation.prepare import Prepared, prepare
from hpcfl.storage.checkpoint import Checkpoints

REPEATS = 3


def main():
    folder, megabytes, *methods = sys.argv[1:]
    plenty, little = {}, {}
    for name in methods:
        prepared, models = experiment(folder, name)
        uplink = arrived(prepared, models)
        plenty |= {
            name: seconds(lambda p=prepared, u=uplink: step(p, u)),
            "copy": seconds(models.clone),
        }
        prepared, models = experiment(folder, name, f"runtime.memory={megabytes}")
        uplink = arrived(prepared, models)
        with peak_of_memory(little, f"{name} MB"):
            little[name] = seconds(lambda p=prepared, u=uplink: step(p, u))
            with tempfile.TemporaryDirectory() as place:
                checkpoints = Checkpoints(place, OneProcess())
                checkpoints.start(1, prepared.initial_server_state, prepared.store, {})
                checkpoints.finish()
        del prepared, models, uplink
    print(json.dumps({"seconds": plenty, "little": little}))


def experiment(
    folder: str, method: str, *overrides: str
) -> tuple[Prepared, torch.Tensor]:
    """Return the federation before its first round, and the uploads of all clients."""
    settings = [
        f"partition.file={folder}/partition.h5",
        f"method.name={method}",
        *overrides,
    ]
    prepared = prepare(config.load(f"{folder}/experiment.toml", settings), OneProcess())
    models = mixing.get_large_memory().empty(
        [prepared.setup.clients, prepared.setup.layout.width]
    )
    return prepared, models.normal_(generator=torch.Generator().manual_seed(0))


def arrived(prepared: Prepared, models: torch.Tensor) -> State:
    """Return the models on rank 0 after the exchange, which is not part of the server
    step.
    """
    everyone, method = np.arange(prepared.setup.clients), prepared.method
    message = {"model": models}
    if isinstance(method, ServerModel):
        message = method.upload(
            prepared.make_fleet(everyone, 2, is_scored=False), {}, models
        )
    return exchange.gather(
        OneProcess(),
        prepared.placement,
        everyone,
        message,
        [exchange.make_header(message)],
    )


def step(prepared: Prepared, uplink: State):
    cohort = prepared.make_cohort(np.arange(prepared.setup.clients), 2)
    prepared.method.aggregate(prepared.initial_server_state, cohort, uplink)
    message = prepared.method.send(prepared.initial_server_state, cohort)
    exchange.send(
        OneProcess(), prepared.placement, cohort.ids, message, torch.device("cpu")
    )


@contextmanager
def peak_of_memory(found: dict[str, float], name: str):
    """Measure the peak of additional memory other than files in a block, in MB."""
    before, peak, over = anonymous(), [0.0], threading.Event()

    def watch():
        while not over.wait(0.002):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    over.set()
    watcher.join()
    found[name] = peak[0] - before


def anonymous() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return (
        next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
        / 1000
    )


def seconds(step: Callable[[], object]) -> float:
    """Return the median, after one warm-up call."""
    times = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
