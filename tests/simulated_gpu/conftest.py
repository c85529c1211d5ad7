"""Federations on the simulated GPU, and what it saw of them.

The tests run where pytest was started with ``-p gpu.guard`` and this folder on
PYTHONPATH; ``test_simulated.py`` does that, and is all that an ordinary run of pytest
finds here.
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
    """What an epoch of local training made the device do. steps: its steps of lanes
    side by side.

    Launches while a graph is made are not counted: it is made once.
    """

    waits: dict[str, int]
    launches: int
    steps: int
    copies: list


@dataclass
class Seen:
    """A federation that was played, and what the device saw of it.

    trainings: the host's waits in each training of lanes side by side, and of how many
    epochs it was.
    """

    played: object
    gpu: object
    steps: int = 0  # those of lanes side by side count as one
    epochs: list[Epoch] = field(default_factory=list)
    trainings: list[tuple[Counter, int]] = field(default_factory=list)


@pytest.fixture
def gpu():
    """A device, empty at first."""
    if not HERE:
        pytest.skip(START)
    with GPU() as device:
        yield device
    mixing.use_device(torch.device("cpu"))
    Normalisation._line.cache_clear()
    mixing._make_stream.cache_clear()


@pytest.fixture
def on_gpu(federate, gpu, monkeypatch):
    """``on_gpu(method, …)`` plays a federation there: its arguments are those of
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
    """``on_cpu(method, …)`` plays the same beside it, with all lanes side by side."""

    def play(*arguments, **sections):
        runtime = {"device": "cpu", "lanes": 1024, **sections.pop("runtime", {})}
        with gpu.absent():
            return federate(*arguments, **sections, runtime=runtime)

    return play


def uncounted(ledger, work):
    """``work``, whose launches nobody counts."""

    def run(*arguments):
        before = ledger.launches.copy()
        result = work(*arguments)
        ledger.launches = before
        return result

    return run


def stepped(seen, count):
    """``MiniBatches.count``, the steps of lanes side by side counted as one."""

    def run(batches, run_of_batches, *arguments):
        seen.steps += run_of_batches.batches
        return count(batches, run_of_batches, *arguments)

    return run


def observed(seen, epoch):
    """``Chunk.train_epoch``, its cost written down."""

    def run(chunk, *arguments):
        ledger, steps = seen.gpu.ledger, seen.steps
        waits, launches, copies = (
            ledger.waits.copy(),
            ledger.launched,
            len(ledger.copies),
        )
        result = epoch(chunk, *arguments)
        seen.epochs.append(
            Epoch(
                dict(ledger.waits - waits),
                ledger.launched - launches,
                seen.steps - steps,
                ledger.copies[copies:],
            )
        )
        return result

    return run


def watched(seen, begin_epoch, finish):
    """``Chunk.begin_epoch`` and ``Chunk.finish``, the waits between them written down."""
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
    """``samples(model)``: sections ``data`` and ``model`` for a model, on data made up
    for it.
    """
    return lambda model: made_up(model, tmp_path)
