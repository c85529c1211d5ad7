"""What single parts cost: ``python tests/benchmarks/parts.py`` prints a line for each,
into ``results/benchmarks/parts.txt`` too.

One process with one thread; medians. Data sets are looked for in $HPCFL_DATA. The lines
explain rows of the table beside it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from server_step import seconds

from hpcfl.clients import Fleet, scoring
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.rows import mixing, sums
from hpcfl.simulation.prepare import Prepared, prepare
from hpcfl.storage import results
from hpcfl.storage.results import Results

OUT = Path(__file__).parents[2] / "results" / "benchmarks" / "parts.txt"
# of a step's measurement, so that what an epoch costs beside its steps does not count
EPOCHS = 20
DIGITS = {"data": {"dataset": "digits"}, "model": {"name": "mlp", "hidden": [32]}}
MNIST = {"data": {"dataset": "mnist"}, "model": {"name": "cnn"}}


def main() -> None:
    lines = []
    for line in (
        *scoring_by_block(),
        *cutting(),
        *server(),
        *means(),
        *metrics(),
    ):
        print(line, flush=True)
        lines.append(line)
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def scoring_by_block() -> Iterator[str]:
    prepared = small({**MNIST, "partition": {"scheme": "iid", "clients": 10}})
    rows = models(prepared)
    samples = sum(
        len(prepared.resources.samples.test[client]) for client in prepared.store.ids
    )
    for block in (10, 64, 128, 256):
        scoring.BLOCK = block
        taken = seconds(lambda: fleet(prepared).score("post", rows))
        yield f"scoring the cnn on MNIST in blocks of {block}: {1e6 * taken / samples:.0f} µs a sample"
    scoring.BLOCK = 128
    taken = seconds(lambda: fleet(prepared).train(rows), 1)
    yield f"training it in batches of 10: {1e6 * taken / prepared.setup.counts.sum():.0f} µs a sample"


def cutting() -> Iterator[str]:
    samples = small(
        {
            **MNIST,
            "partition": {"scheme": "iid", "clients": 10},
            "model": {"name": "mlp"},
        }
    ).resources.samples
    index = torch.randperm(len(samples.y))[:500]
    yield (
        "500 normalised images, as batches are cut: "
        f"{1e3 * seconds(lambda: samples.take(index), 50):.2f} ms"
    )
    taken = seconds(lambda: (samples.x[index] / 255 - 0.5) / 0.5, 50)
    yield f"500 normalised images by x[index] and (x / 255 − 0.5) / 0.5: {1e3 * taken:.2f} ms"


def server() -> Iterator[str]:
    rows = torch.randn(100, 878_538, generator=torch.Generator().manual_seed(0))
    everyone, matrix = torch.arange(100), torch.rand(100, 100, dtype=torch.float64)
    for size in (15, 17, 18, 20):
        mixing.BLOCK_FLOATS = 1 << size
        megabytes = 8 * mixing.BLOCK_FLOATS / (1 << 20)
        yield (
            f"100 models of 878,538 in blocks of {megabytes:g} MB: "
            f"distances {seconds(distances(rows, everyone)):.2f} s, product "
            f"{seconds(lambda: mixing.mix(matrix, rows)):.2f} s"
        )
    mixing.BLOCK_FLOATS = 1 << 17
    matrix, models = matrix[:, :10], rows[:10].double()
    product = seconds(lambda: mixing.mix(matrix, models, rows.dtype))
    yield (
        f"100 mixtures of 10 models of 878,538: by a product {product:.2f} s, "
        f"added in order {seconds(lambda: mixing.combine(matrix, models, rows.dtype)):.2f} s"
    )
    differences = seconds(
        lambda: mixing.total(lambda block: torch.pdist(block.double()).square(), rows)
    )
    yield f"distances of all of them by differences: {differences:.2f} s"
    yield f"a copy of all of them: {seconds(rows.clone):.2f} s"


def means() -> Iterator[str]:
    """What the model of the cost in ``scale.md`` needs, ns a parameter."""
    yield mean("the cnn", 878_538, 50)
    yield mean("ResNet-18", 11_181_642, 4)


def mean(model: str, width: int, clients: int) -> str:
    rows = torch.randn(clients, width, generator=torch.Generator().manual_seed(0))
    weights = torch.full((clients, 1), 500.0)
    units = sums.units(sums.magnitudes(rows, weights), 500, 500 * clients)
    added = sums.sums(rows, weights, units)
    largest = 1e9 * seconds(lambda: sums.magnitudes(rows, weights)) / rows.numel()
    adding = 1e9 * seconds(lambda: sums.sums(rows, weights, units)) / rows.numel()
    dividing = (
        1e9
        * seconds(lambda: sums.means(added, units, [500.0 * clients], rows.dtype))
        / width
    )
    return (
        f"a mean over {clients} clients of {model}: {largest:.2f} ns for the largest of each column "
        f"and {adding:.2f} ns to add, a client's parameter; {dividing:.2f} ns to divide, a parameter"
    )


def metrics() -> Iterator[str]:
    values = {
        **{f"value {i}": np.zeros(1) for i in range(30)},
        **{f"clients/{i}": np.zeros((1, 100)) for i in range(7)},
    }
    part = Results(rounds=np.array([1]), values=values)
    taken = seconds(lambda: results.encode(part), 50)
    yield f"the file of a round with 37 values: {1e3 * taken:.1f} ms"


def small(sections: dict) -> Prepared:
    return prepare(
        config.parse({"name": "parts", "method": {"name": "fedavg"}, **sections}),
        OneProcess(),
    )


def fleet(prepared: Prepared) -> Fleet:
    return prepared.fleet(np.arange(prepared.setup.clients), 1, scored=True)


def models(prepared: Prepared) -> torch.Tensor:
    return prepared.server["model"].repeat(prepared.setup.clients, 1)


def distances(rows: torch.Tensor, chosen: torch.Tensor) -> Callable[[], object]:
    return lambda: mixing.distances_within(rows, chosen, chosen)


if __name__ == "__main__":
    main()
