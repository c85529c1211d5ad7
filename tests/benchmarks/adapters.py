"""Adapters of many clients above one base, against a loop over clients with one model in
memory, as libraries for adapters are used: it loads each client's adapter into the
module, takes steps of torch's optimiser, and takes the adapter out again.

    python tests/benchmarks/adapters.py race      # CPU seconds of a training of 50 clients
    python tests/benchmarks/adapters.py memory    # 100 clients above 20 million parameters
    python tests/benchmarks/adapters.py memory bf16    # the same in mixed precision

Both contenders train the same mini-batches; that they end at the same numbers is checked. Times are
CPU seconds of this process with one thread, interleaved.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.models.transformer import Block
from hpcfl.rows import constants, randomness
from hpcfl.simulation.prepare import Prepared, prepare

REPEATS = 5
SMALL = {"patch": 2, "depth": 2, "heads": 4, "dropout": 0.0}
SIZES = {64: {"head_width": 16, "hidden": 128}, 128: {"head_width": 32, "hidden": 256}}
LARGE = {
    "patch": 2,
    "width": 512,
    "depth": 7,
    "heads": 8,
    "head_width": 64,
    "hidden": 1792,
}


def prepared_for(
    clients: int, model: dict[str, Any], precision: str = "exact"
) -> Prepared:
    table = {
        "data": {"dataset": "digits"},
        "partition": {"scheme": "iid", "clients": clients},
        "method": {"name": "fedavg"},
        "model": {"name": "vit", **model},
        "adapter": {"kind": "lora", "rank": 8},
        "training": {"batch_size": 8, "lr": 0.01},
        "runtime": {"precision": precision},
    }
    return prepare(config.parse(table), OneProcess())


def in_lanes(prepared: Prepared, rows: Tensor) -> Tensor:
    """The clients' trained adapters [n, P], as hpcfl trains them in round 1."""
    ids = np.arange(prepared.setup.clients)
    return prepared.fleet(ids, 1, scored=False).train(rows)


def in_a_loop(prepared: Prepared, module: nn.Module, rows: Tensor) -> Tensor:
    """The same by one module and torch's optimiser, one client after the other."""
    for part in module.modules():
        if isinstance(part, Block):
            part.activation = gelu  # torch's own is faster for one client
    layout, samples = prepared.setup.layout, prepared.resources.samples
    size, rate = prepared.config.training.batch_size, prepared.config.training.lr
    parameters = dict(module.named_parameters())
    trained = torch.empty(prepared.setup.clients, layout.width)
    for client in range(prepared.setup.clients):
        with torch.no_grad():
            for name, value in layout.split(rows).items():
                parameters[name].copy_(value)
        optimizer = torch.optim.SGD(parameters.values(), lr=rate)
        pool = samples.train[client]
        key = ("shuffle", "train", 1, client, 0)
        order = pool[randomness.permutation(len(pool), prepared.config.seed, *key)]
        x, y = samples.take(order)
        for batch, labels in zip(x.split(size), y.split(size), strict=True):
            optimizer.zero_grad()
            cross_entropy(module(batch), labels).backward()
            optimizer.step()
        with torch.no_grad():
            for name, value in layout.split(trained[client]).items():
                value.copy_(parameters[name])
    return trained


def race(width: int) -> None:
    """Print the ratio of both, of 50 clients with a ViT of this width on digits."""
    prepared = prepared_for(50, {**SMALL, "width": width, **SIZES[width]})
    rows = prepared.setup.initial()
    module = prepared.setup.build()
    contenders: list[Callable[[], Tensor]] = [
        lambda: in_lanes(prepared, rows),
        lambda: in_a_loop(prepared, module, rows),
    ]
    found = [run() for run in contenders]  # which also records what runs often
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
    seconds: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for place, run in enumerate(contenders):
            began = time.process_time()
            run()
            seconds[place].append(time.process_time() - began)
    lanes, loop = map(statistics.median, seconds)
    print(
        f"width {width}: lanes {lanes:.3f} s, loop {loop:.3f} s, ratio {lanes / loop:.2f}; "
        f"{prepared.setup.layout.width:,} trained, {prepared.setup.layout.frozen:,} frozen, "
        f"{prepared.resources.kernel.widest} lanes, load {os.getloadavg()[0]:.1f}"
    )


def memory(precision: str) -> None:
    """Print the seconds of a training of 100 clients and the most memory of this process."""
    prepared = prepared_for(100, LARGE, precision)
    began = time.process_time()
    in_lanes(prepared, prepared.setup.initial())
    seconds = time.process_time() - began
    base = constants.size(prepared.resources.kernel.module)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{prepared.setup.layout.width:,} trained above {prepared.setup.layout.frozen:,} frozen "
        f"({base / 1e6:.0f} MB, {precision}): {seconds:.1f} CPU s a round, {most:.2f} GB at most, "
        f"{prepared.resources.kernel.widest} lanes"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2] if sys.argv[2:] else "exact")
    else:
        for width in SIZES:
            race(width)
