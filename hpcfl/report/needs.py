"""What an experiment will need in memory and on the disk, computed from what is prepared,
without training."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hpcfl.communication.communicator import Process
from hpcfl.fleet.optimizers import moments
from hpcfl.preparation.prepare import Prepared
from hpcfl.report.text import literal
from hpcfl.trial import measuring

FLOAT = 4  # bytes
NUMBERS = 3  # float64 numbers of a client and round beside scores: training loss, floats, divergence
COLUMNS = 2  # models that most methods score
KEPT = 3  # two checkpoints and the one being written


@dataclass(frozen=True)
class RankNeeds:
    """One rank's share, in bytes. rows: client models of a round; lanes: what trains at once; both
    without activations.

    client_state and server: as much as ``runtime.memory`` lets lie in memory.
    """

    clients: int
    samples: int
    client_state: int
    rows: int
    lanes: int
    server: int


def of_rank(prepared: Prepared, process: Process) -> RankNeeds:
    """This rank's needs in a round with all clients it may have to serve."""
    config, resources = prepared.config, prepared.resources
    model = FLOAT * prepared.setup.layout.width
    cohort = max(1, int(config.participation.fraction * config.partition.clients + 1e-9))
    own = len(prepared.store.ids)
    playing = min(own, cohort)
    # what goes down and what comes up
    server = sum(tensor.nbytes for tensor in prepared.server.values()) + 2 * cohort * model
    most = int(config.runtime.memory * 1e6)
    return RankNeeds(
        clients=own,
        samples=resources.samples.x.nbytes + resources.samples.y.nbytes,
        client_state=min(most, own * client_bytes(prepared)),
        # start and trained rows, and the state in use
        rows=2 * playing * model + playing * client_bytes(prepared),
        # parameters, gradients
        lanes=min(playing, resources.kernel.widest) * (2 + moments(config.training)) * model,
        server=min(most, server) if process.is_server else 0)


def client_bytes(prepared: Prepared) -> int:
    """Private state of one client."""
    return sum(tensor.nbytes for tensor in prepared.store.template.values())


def of_disk(prepared: Prepared) -> tuple[int, int]:
    """Bytes of one checkpoint (the server's state may still grow by the uploads it keeps), and
    of the metrics."""
    config = prepared.config
    state = sum(tensor.nbytes
                for tensor in prepared.server.values()) + config.partition.clients * client_bytes(prepared)
    scored = ceil(config.rounds / config.evaluation.every) + 1
    return state, scored * config.partition.clients * (COLUMNS * len(of_scores(prepared)) + NUMBERS) * 8


def of_scores(prepared: Prepared) -> set[str]:
    """The names of the numbers that the scores record of a client and column."""
    return {part for name, score in prepared.resources.scores.items()
            for part in measuring.numbers(name, score, measuring.made_up(prepared.setup.classes))}


def show(prepared: Prepared, ranks: list[dict[str, Any]]) -> None:
    """Print the table of all ranks, given as ``vars(RankNeeds)``, and the disk's line."""
    console = Console(highlight=False)
    found = Table("rank", "clients", "samples", "client state", "model rows", "lanes", "server",
                  "sum", box=box.SIMPLE_HEAD, title="memory, beside Python, torch and activations",
                  title_justify="left")
    for column in found.columns:
        column.justify = "right"
    for rank, needs in enumerate(ranks):
        sizes = [size for name, size in needs.items() if name != "clients"]
        found.add_row(str(rank), str(needs["clients"]), *map(size_text, [*sizes, sum(sizes)]))
    console.print(found)
    checkpoint, metrics = of_disk(prepared)
    console.print(f"disk: {size_text(checkpoint)} a checkpoint, {KEPT} at most; metrics {size_text(metrics)}")
    console.print(f"model: {prepared.setup.layout.width:,} parameters")
    measure = prepared.measure
    direction = "highest" if measure.better == "up" else "lowest"
    scores = ", ".join(prepared.resources.scores)
    console.print(literal(f"scores: {scores}; the best round is that of the {direction} {measure.recorded}"),
                  soft_wrap=True)


def size_text(size: float) -> str:
    """Bytes in a unit that reads well."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
