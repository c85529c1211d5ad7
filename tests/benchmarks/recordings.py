"""Up to how many operations a recorded step is faster than the function it repeats:
``python tests/benchmarks/recordings.py`` writes the table in
``results/benchmarks/recordings.md``.

Gradients and losses of all lanes, by ``vmap`` and by a recording, in turn in one process
with one thread; CPU seconds, medians.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pages
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hpcfl.clients.execution import BatchedKernel, Session, recorded
from hpcfl.clients.losses import Batch
from hpcfl.models import char_lstm, vit
from hpcfl.models.mlp import MLP
from hpcfl.models.replaced import replace_layers
from hpcfl.rows.layout import of_parameters

Case = tuple[str, nn.Module, int, Tensor]  # name, model, lanes, x [lanes, batch, …]


def cases() -> Iterator[Case]:
    for lanes in (1, 10, 60):
        module = MLP((64,), 10, hidden=(64,))
        yield "64-64-10", module, lanes, torch.randn(lanes, 10, 64)
    for width, depth, lanes in ((32, 2, 16), (16, 6, 16), (32, 6, 40), (64, 6, 8)):
        sizes = {"width": width, "depth": depth, "heads": 4}
        sizes |= {"head_width": width // 4, "hidden": 2 * width}
        module = vit.plugin((1, 8, 8), 10, patch=2, dropout=0.0, **sizes)
        name = f"vit, {depth} blocks of width {width}, 17 tokens"
        yield name, module, lanes, torch.randn(lanes, 8, 1, 8, 8)
    for length, hidden, lanes, batch in (
        (20, 16, 64, 10),
        (20, 32, 64, 4),
        (40, 32, 8, 10),
        (80, 32, 20, 10),
        (80, 256, 2, 10),
    ):
        module = char_lstm.plugin((length,), 10, vocabulary=80, hidden=hidden)
        name = f"char-lstm, {length} characters, 2 layers of {hidden}"
        yield name, module, lanes, torch.randint(80, (lanes, batch, length))


def loss(model: nn.Module, batch: Batch, lane: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


def measured(case: Case) -> list[str]:
    """The cells of a case's row."""
    name, module, lanes, x = case
    module = replace_layers(module)
    names = of_parameters(module).names
    batch = Batch(x, torch.randint(10, x.shape[:2]))
    sessions = []
    for replay in (False, True):
        kernel = BatchedKernel(module, lanes, replay)
        tensors = {
            key: value.detach() + 0.01 * torch.randn(lanes, *value.shape)
            for key, value in module.named_parameters()
        }
        sessions.append(kernel.begin(tensors, names, loss))

    def seconds(session: Session) -> float:
        began = time.process_time()
        session.gradients(slice(0, lanes), batch, {})
        return time.process_time() - began

    seconds(sessions[0])  # the first call of all looks at the operators
    first = seconds(sessions[1])
    taken: list[list[float]] = [[], []]
    while len(taken[0]) < 9 or (sum(taken[0]) < 1 and len(taken[0]) < 60):
        for place, session in enumerate(sessions):
            taken[place].append(seconds(session))
    plain, replayed = map(statistics.median, taken)
    return [
        name,
        str(lanes),
        f"{operations(kernel):,}",
        f"{1e3 * plain:.2f}",
        f"{1e3 * replayed:.2f}",
        f"{replayed / plain:.2f}",
        f"{first:.2f}",
    ]


def operations(kernel: BatchedKernel) -> int:
    """How many the one recording of a kernel has."""
    (function,) = kernel._recordings.values()
    assert isinstance(function, recorded.Recorded)
    (recording,) = function._recordings.values()
    graph = recording.__wrapped__.__self__.graph  # type: ignore[attr-defined]
    return sum(node.op == "call_function" for node in graph.nodes)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recorded.OFTEN = 0  # the first call records
    heads = ["model", "lanes", "operations", "plain, ms", "recorded, ms", "ratio"]
    text = pages.table([*heads, "recording, s"], [measured(case) for case in cases()])
    print(text)
    pages.replace(pages.RESULTS / "recordings.md", "recordings.py", text)


if __name__ == "__main__":
    main()
