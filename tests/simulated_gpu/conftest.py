"""Federations on the simulated GPU, and its measurements.

The tests run only if pytest was started with ``-p gpu.guard`` and this folder on
PYTHONPATH, as ``test_simulated.py`` does. An ordinary run of pytest finds only that
file here.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from on_gpu import made_up

HERE = "gpu.guard" in sys.modules
collect_ignore_glob = ["test_simulated.py"] if HERE else ["test_on_*.py"]
START = (
    "start with: PYTHONPATH=tests/simulated_gpu:. python -m pytest -p gpu.guard "
    "-p no:xdist tests/simulated_gpu"
)

if HERE:
    from gpu.device import GPU

    from hpcfl.clients.batch_plan import MiniBatches
    from hpcfl.clients.execution.cuda_graphs import Graphed
    from hpcfl.clients.training import Chunk
    from hpcfl.data.datasets import Normalisation
    from hpcfl.rows import mixing


@dataclass
class Epoch:
    """Work of the device in an epoch of local training. steps: its steps of batched
    lanes.

    Launches during a capture are not counted, since a graph is captured once.
    """

    launches: int
    steps: int


@dataclass
class Seen:
    """A finished federation and the measurements of the device.

    trainings: number of the host's waits in each training of batched lanes, and its
    number of epochs.
    """

    played: object
    gpu: object
    steps: int = 0  # batched lanes count as one
    epochs: list[Epoch] = field(default_factory=list)
    trainings: list[tuple[Counter, int]] = field(default_factory=list)


@pytest.fixture
def gpu():
    """Return a new device."""
    if not HERE:
        pytest.skip(START)
    with GPU() as device:
        yield device
    mixing.use_device(torch.device("cpu"))
    Normalisation._compute_line.cache_clear()
    mixing._make_stream.cache_clear()


@pytest.fixture
def on_gpu(federate, gpu, monkeypatch):
    """Return ``on_gpu(method, …)``, which runs a federation there with the arguments of
    ``federate``.
    """

    def play(*arguments, **sections):
        seen = Seen(None, gpu)
        monkeypatch.setattr(Chunk, "train_epoch", observed(seen, Chunk.train_epoch))
        monkeypatch.setattr(MiniBatches, "count", stepped(seen, MiniBatches.count))
        begin, finish = watched(seen, Chunk.begin_epoch, Chunk.finish)
        monkeypatch.setattr(Chunk, "begin_epoch", begin)
        monkeypatch.setattr(Chunk, "finish", finish)
        monkeypatch.setattr(
            Graphed, "_capture", uncounted(gpu.ledger, Graphed._capture)
        )
        sections["runtime"] = {"device": "cuda", **sections.get("runtime", {})}
        seen.played = federate(*arguments, **sections)
        return seen

    return play


@pytest.fixture
def on_cpu(federate, gpu):
    """Return ``on_cpu(method, …)``, which runs the same on the CPU, with all lanes in
    one batch.
    """

    def play(*arguments, **sections):
        runtime = {"device": "cpu", "lanes": 1024, **sections.pop("runtime", {})}
        with gpu.absent():
            return federate(*arguments, **sections, runtime=runtime)

    return play


def uncounted(ledger, work):
    """Run ``work`` without counting its launches."""

    def run(*arguments):
        before = ledger.launches.copy()
        result = work(*arguments)
        ledger.launches = before
        return result

    return run


def stepped(seen, count):
    """Wrap ``MiniBatches.count`` to count steps of batched lanes as one."""

    def run(batches, run_of_batches, *arguments):
        seen.steps += run_of_batches.batches
        return count(batches, run_of_batches, *arguments)

    return run


def observed(seen, epoch):
    """Wrap ``Chunk.train_epoch`` to record its cost."""

    def run(chunk, *arguments):
        launches, steps = seen.gpu.ledger.launched, seen.steps
        result = epoch(chunk, *arguments)
        done = Epoch(seen.gpu.ledger.launched - launches, seen.steps - steps)
        seen.epochs.append(done)
        return result

    return run


def watched(seen, begin_epoch, finish):
    """Wrap ``Chunk.begin_epoch`` and ``Chunk.finish`` to record the waits between them."""
    begun = {}

    def begin(chunk):
        begun.setdefault(id(chunk), (seen.gpu.ledger.waits.copy(), len(seen.epochs)))
        return begin_epoch(chunk)

    def end(chunk):
        result = finish(chunk)
        waits, epochs = begun.pop(id(chunk))
        seen.trainings.append(
            (seen.gpu.ledger.waits - waits, len(seen.epochs) - epochs)
        )
        return result

    return begin, end


@pytest.fixture
def samples(tmp_path):
    """Return ``samples(model)``, which makes the sections ``data`` and ``model`` for a
    model, with synthetic data.
    """
    return lambda model: made_up(model, tmp_path)
