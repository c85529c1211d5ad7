"""What an experiment will need in memory and on the disk, computed without training
from what is prepared.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hpcfl.communication.communicator import Process
from hpcfl.fleet.optimizers import slots
from hpcfl.preparation.prepare import Prepared
from hpcfl.report.text import literal
from hpcfl.rows.layout import Layout
from hpcfl.trial import measuring

FLOAT = 4  # bytes
# float64 numbers of a client and round beside its scores: losses, floats sent,
# divergence
NUMBERS = 4
COLUMNS = 2  # how many most methods score: pre and post


@dataclass(frozen=True)
class RankNeeds:
    """What one rank needs in memory, without activations: a number of clients, and
    bytes.
    """

    clients: int  # how many the rank hosts
    samples: int
    client_state: (
        int  # of all its clients, as far as ``runtime.memory`` lets it lie in memory
    )
    rows: int  # models and state of the clients that take part in a round
    # models of the clients that train at the same time, with gradients and the
    # optimizer's state
    lanes: int
    # state and messages of rank 0, as far as ``runtime.memory`` lets them lie in memory
    server: int


def of_rank(prepared: Prepared, process: Process) -> RankNeeds:
    """This rank's needs in a round in which as many of its clients take part as ever
    can.
    """
    config, resources = prepared.config, prepared.resources
    model = FLOAT * prepared.setup.layout.width
    cohort = max(
        1, int(config.participation.fraction * config.partition.clients + 1e-9)
    )
    own = len(prepared.store.ids)
    participants = min(own, cohort)
    # twice the cohort's models: what goes down and what comes up
    server = (
        sum(tensor.nbytes for tensor in prepared.server.values()) + 2 * cohort * model
    )
    limit = int(config.runtime.memory * 1e6)
    return RankNeeds(
        clients=own,
        samples=resources.samples.x.nbytes + resources.samples.y.nbytes,
        client_state=min(limit, own * client_bytes(prepared)),
        # start and trained rows, and the state in use
        rows=2 * participants * model + participants * client_bytes(prepared),
        # parameters, gradients and what the optimizer keeps; what is frozen is there once
        lanes=min(participants, resources.kernel.widest)
        * (2 + len(slots(config.training)))
        * model
        + FLOAT * prepared.setup.layout.frozen,
        server=min(limit, server) if process.is_server else 0,
    )


def client_bytes(prepared: Prepared) -> int:
    """Bytes of the private state of one client."""
    return sum(tensor.nbytes for tensor in prepared.store.template.values())


def of_disk(prepared: Prepared) -> tuple[int, int]:
    """Bytes of one checkpoint and of the metrics of the whole run.

    The server's state may still grow by the uploads that it keeps.
    """
    config = prepared.config
    state = sum(
        tensor.nbytes for tensor in prepared.server.values()
    ) + config.partition.clients * client_bytes(prepared)
    scored = ceil(config.rounds / config.evaluation.every) + 1
    return state, scored * config.partition.clients * (
        COLUMNS * len(of_scores(prepared)) + NUMBERS
    ) * 8


def of_scores(prepared: Prepared) -> set[str]:
    """The names of the numbers that the scores record of each client in a column."""
    return {
        part
        for name, score in prepared.resources.scores.items()
        for part in measuring.numbers(
            name, score, measuring.made_up(prepared.setup.classes)
        )
    }


def show(prepared: Prepared, ranks: list[dict[str, Any]]) -> None:
    """Print a table of all ranks' needs, and lines about the disk, the model and the
    scores.

    ranks: ``vars`` of each rank's RankNeeds, in rank order.
    """
    console = Console(highlight=False)
    table = Table(
        "rank",
        "clients",
        "samples",
        "client state",
        "model rows",
        "lanes",
        "server",
        "sum",
        box=box.SIMPLE_HEAD,
        title="memory, beside Python, torch and activations",
        title_justify="left",
    )
    for column in table.columns:
        column.justify = "right"
    for rank, needs in enumerate(ranks):
        sizes = [size for name, size in needs.items() if name != "clients"]
        table.add_row(
            str(rank), str(needs["clients"]), *map(size_text, [*sizes, sum(sizes)])
        )
    console.print(table)
    checkpoint, metrics = of_disk(prepared)
    kept = prepared.config.checkpoint.keep + 1  # with the one that is being written
    console.print(
        f"disk: {size_text(checkpoint)} a checkpoint, {kept} at most; metrics {size_text(metrics)}"
    )
    console.print(f"model: {parameters_text(prepared.setup.layout)}")
    measure = prepared.measure
    direction = "highest" if measure.better == "up" else "lowest"
    scores = ", ".join(prepared.resources.scores)
    console.print(
        literal(
            f"scores: {scores}; the best round is that of the {direction} {measure.recorded}"
        ),
        soft_wrap=True,
    )


def parameters_text(layout: Layout) -> str:
    """How many parameters a model has, and how many of them are trained."""
    if not layout.frozen:
        return f"{layout.width:,} parameters"
    return (
        f"{layout.width:,} parameters are trained, {layout.frozen:,} are frozen: they "
        "do not travel"
    )


def size_text(size: float) -> str:
    """A number of bytes in a unit that reads well, such as ``3.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
