"""What the ranks of a job that is not started yet will need."""

from hpcfl.communication.communicator import Process
from hpcfl.experiment.config import Config
from hpcfl.preparation.prepare import prepare
from hpcfl.report import needs


def show(config: Config, ranks: int) -> None:
    """Print the memory of the server and of rank 1, which gets the largest clients, and the disk.
    Raises UserError.

    Computed for CPUs, because the machine that submits may have no GPU; a GPU that trains more lanes
    at once needs more.
    """
    runtime = config.runtime.model_copy(update={"device": "cpu"})
    config = config.model_copy(update={"runtime": runtime})
    world = [Process(rank, ranks) for rank in range(min(ranks, 2))]
    prepared = [prepare(config, rank) for rank in world]
    needs.show(prepared[0],
               [vars(needs.of_rank(one, rank)) for one, rank in zip(prepared, world, strict=True)])
    if ranks > len(world):
        print(f"ranks 2 to {ranks - 1}: much like rank 1")
