"""Forecasts of the memory and disk that a job's ranks need."""

from dataclasses import replace

from hpcfl.commands import needs
from hpcfl.communication.communicator import Process
from hpcfl.experiment.config import Config
from hpcfl.report.text import plain
from hpcfl.simulation.prepare import prepare


def show(config: Config, ranks: int) -> None:
    """Print the needs of the server and of rank 1, which gets the largest clients.

    ranks: the number of ranks of the job. The forecast is for CPUs, because the
    submitting host may have no GPU; a GPU that trains more lanes at the same time needs
    more. Raises UserError.
    """
    runtime = config.runtime.model_copy(update={"device": "cpu"})
    config = config.model_copy(update={"runtime": runtime})
    processes = [Process(rank, ranks) for rank in range(min(ranks, 2))]
    prepared = [prepare(config, process) for process in processes]
    server = needs.of_server(prepared[-1])
    of_ranks = [needs.of_rank(of_process) for of_process in prepared]
    ranks_needs = [replace(of_ranks[0], server=server), *of_ranks[1:]]
    print(needs.describe_needs(prepared[0], ranks_needs))
    print(needs.describe_model(prepared[0]))
    if ranks > len(processes):
        print(f"ranks 2 to {ranks - 1}: at most as much as rank 1")
    for note in prepared[0].notes:
        print(f"note: {plain(note)}")
