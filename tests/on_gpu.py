"""Checks for a GPU, real or simulated: every method with a model, an optimiser and
options, and the memory of lanes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from every_method import NAMES, kind
from playing import play, prepare_tiny

from hpcfl.clients.lane_memory import count_client_bytes, count_lane_bytes
from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess

# Maximal difference of a tensor of the final state from the CPU's, as a share of its
# largest number. Rounding is 1e-7, and training amplifies it.
TOLERANCE = 1e-3

MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0}
# method, its options, the model, [training]
CHOSEN = [
    ("cwfedavg", {"layers": "all", "wdr": 1.0}, "mlp", {}),
    ("cwfedavg", {"layers": "output", "wdr": 1.0}, "mlp", {"optimizer": "adam"}),
    ("ditto", {"ala": True}, "mlp", MOMENTUM),
    ("diversifed", {}, "mlp", {"optimizer": "adam"}),
    ("fedala", {"most_epochs": 2, "share": 1.0}, "mlp", {}),
    ("fedavg", {"ala": True, "aggregation": "class-wise"}, "mlp", {}),
    ("fedavg", {}, "fasttext", {"optimizer": "adam", "clip": 1.0}),
    ("fedavg", {}, "mlp", {"optimizer": "adamw", "weight_decay": 0.1}),
    ("fedavg", {}, "resnet8", {"buffers": "average", "lr": 1e-4}),
    ("fedbabu", {"tune_epochs": 1}, "lenet", {"momentum": 0.9}),
    ("fednh", {}, "cnn", {}),
    ("fedper", {}, "mlp", {"optimizer": "adam"}),
    ("fedphp", {}, "tiny:normalised", {}),
    ("fedprox", {}, "cnn", {}),
    ("fedprox-c", {"tune_epochs": 1}, "mlp", {"momentum": 0.9}),
    ("fedrep", {"head_epochs": 1}, "tiny:normalised", {}),
    ("fedrod", {"personal": "hyper"}, "mlp", {}),
    ("fedrod", {"order": "separate"}, "mlp", {}),
    ("local", {}, "fasttext", {}),
    ("partialfed", {"warmup": 0}, "mlp", {}),
    ("apfl", {}, "mlp", {"momentum": 0.9}),
    ("fedbn", {}, "tiny:normalised", {}),
    ("fedavg", {}, "tiny:lora", {"momentum": 0.9}),
    ("fedrod", {}, "tiny:head_only", {}),
]
OTHERS = set(NAMES) - {name for name, *_ in CHOSEN}
PLAYED = CHOSEN + [(name, kind(name).short, "mlp", {}) for name in sorted(OTHERS)]
# Samples of five clients: three steps, the last with two samples for some clients; the
# smallest client has no whole batch.
COUNTS = [[4, 5, 0, 1], [0, 4, 4, 0], [0, 0, 1, 2], [6, 0, 2, 2], [2, 2, 2, 2]]

# Bytes that cuBLAS reserves on a real GPU with CUBLAS_WORKSPACE_CONFIG = :4096:8: for
# this thread, for autograd's thread, and for the stream of captures.
OF_CUBLAS = 3 * 8 * (4096 << 10)
# Number of clients whose memory is measured. They need far more memory than these
# bytes.
SIDE_BY_SIDE = {"cnn": 64, "resnet18": 8}

SHAPES = {
    "cnn": (1, 16, 16),
    "lenet": (1, 28, 28),
    "resnet8": (3, 8, 8),
    "resnet18": (3, 32, 32),
    "fasttext": (7,),
}


def made_up(model: str, folder: Path) -> dict[str, Any]:
    """Return the sections ``data`` and ``model`` for a model, with synthetic data."""
    if model == "mlp":
        return {"model": {"name": "mlp", "hidden": [6]}}
    if model.startswith("tiny:"):
        return {"model": {"name": model}}
    random, shape = np.random.default_rng(0), (240, *SHAPES[model])
    x = (
        random.integers(0, 9, shape)
        if model == "fasttext"
        else random.integers(0, 256, shape, dtype=np.uint8)
    )
    np.savez(folder / f"{model}.npz", x=x, y=np.repeat(np.arange(4), 60))
    return {
        "data": {"dataset": "npz", "file": str(folder / f"{model}.npz")},
        "model": {"name": model},
    }


def on_both(case: tuple, folder: Path, gpu: str = "cuda", **runtime) -> float:
    """Return the largest difference between the final states of a case on the GPU and
    on the CPU, measured as ``TOLERANCE``.

    A run has six rounds, so that steps are captured as graphs; with more rounds batch
    norm over batches of two would amplify rounding too much. ``runtime``: further keys
    of this section, on both devices.
    """
    method, options, model, training = case
    once = model in ("resnet8", "tiny:normalised")
    sections = {
        **made_up(model, folder),
        "rounds": 1 if once else 6,
        "training": {
            "lr": 1e-4 if once else 0.05,
            "epochs": 4 if once else 1,
            **training,
        },
    }
    states = [
        play(
            folder / str(number),
            {"name": method, **options},
            COUNTS,
            **sections,
            runtime={"device": device, "lanes": 1024, **runtime},
        ).state
        for number, device in enumerate([gpu, "cpu"])
    ]
    return max(apart(one, states[1][name]) for name, one in states[0].items())


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of two tensors as a share of the largest number;
    infinities may be equal.
    """
    one, other = one.double(), other.double()
    finite = other[other.isfinite()]
    gaps = torch.where(
        (one == other) | (one.isnan() & other.isnan()), 0.0, (one - other).abs()
    )
    return (
        (gaps.amax() / finite.abs().amax().clamp(min=1e-6)).item()
        if len(finite)
        else 0.0
    )


def digests(method: dict[str, Any], sections: dict[str, Any], folder: Path) -> set[str]:
    """Return the digests of a federation of fourteen clients: of two runs, and of a
    third run without graphs.

    Eleven clients have whole batches and are computed in a width of twelve.
    """
    return {
        play(
            folder / str(number),
            method,
            (3 * COUNTS)[:14],
            **sections,
            runtime={"device": "cuda", "replay": number < 2},
        ).digest
        for number in range(3)
    }


def share_of_rule(
    method: str | dict[str, Any],
    counts: list[list[int]],
    sections: dict[str, Any],
    rounds: int,
    beside: int = 0,
) -> float:
    """Return the peak memory of clients that train together, graphs included, as a
    share of the rule's estimate.

    beside: bytes of this memory that other work uses.
    """
    runtime = {"device": "cuda", "lanes": len(counts), **sections.get("runtime", {})}
    prepared = prepare_tiny(method, counts, **{**sections, "runtime": runtime})
    everyone, resources = np.arange(len(counts)), prepared.resources
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for round in range(1, rounds + 1):
        sent = prepared.method.send(
            prepared.initial_server_state, prepared.make_audience(everyone, round)
        )
        inbox, _ = exchange.send(
            OneProcess(), prepared.placement, everyone, sent, resources.device
        )
        fleet = prepared.make_fleet(everyone, round, True)
        prepared.method.update(fleet, prepared.method.prepare(fleet, inbox))
        del fleet, inbox
    private = sum(tensor.nbytes for tensor in prepared.store.template.values())
    one = resources.samples.take(resources.samples.train[0][:1])[0]
    module = resources.kernel.module
    rule = count_lane_bytes(
        module, one, prepared.config.training, private
    ) + count_client_bytes(module, private)
    return (torch.cuda.max_memory_allocated() - before - beside) / (len(counts) * rule)
