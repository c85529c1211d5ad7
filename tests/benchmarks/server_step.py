"""The server's step of a method on given clients' models: ``python server_step.py FOLDER METHOD …``.

Prints JSON: seconds of ``send`` + ``aggregate`` of each method, and of copying all models once, which is the memory's speed.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from hpcfl import config
from hpcfl.communicator import Communicator
from hpcfl.message import fields
from hpcfl.preparation import prepare

REPEATS = 3


def main() -> None:
    folder, *methods = sys.argv[1:]
    found = {}
    for name in methods:
        overrides = [f"partition.file={folder}/partition.h5", f"method.name={name}"]
        prepared = prepare(config.load(f"{folder}/experiment.toml", overrides), Communicator())
        cohort = prepared.cohort(np.arange(prepared.setup.clients), 2)
        models = torch.randn(prepared.setup.clients, prepared.setup.layout.width, generator=torch.Generator().manual_seed(0))

        def step(method=prepared.method, server=prepared.server, cohort=cohort, models=models) -> None:
            method.aggregate(server, cohort, {"model": models})
            fields(method.send(server, cohort))

        found |= {name: seconds(step), "copy": seconds(models.clone)}
    print(json.dumps({"bytes": models.nbytes, "seconds": found}))


def seconds(step: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
