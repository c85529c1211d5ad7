"""Who starts where the server waits for nobody and takes the fastest (time.md §5, §10)."""

import numpy as np
import tiny

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare
from hpcfl.simulation.timing import timed

COUNTS = [[2, 2, 2, 2]] * 8
ROUNDS = 4
LATER = 20  # rounds after which everybody has arrived who started in the first ones
KEYS = {
    # of all who are free
    "participation": {"select": "fastest", "candidates": 8.0},
    "time": {"mode": "asynchronous", "concurrency": 3, "buffer": 2, "sigma": 1.0},
    "rounds": ROUNDS,
}


def test_the_fastest_of_those_who_are_free_start(federate):
    """A client is free unless it is at work or its upload waits for the others of its
    round.
    """
    played = federate("fedavg", COUNTS, **KEYS)
    table = tiny.table("fedavg", COUNTS, **KEYS)
    prepared = timed(prepare(config.parse(table), OneProcess()), OneProcess())
    calendar = prepared.calendar
    ticks = np.array([calendar.duration.ticks(client, 1) for client in range(8)])
    steps = [calendar.step(number) for number in range(1, LATER)]
    starts = {job.begun for step in steps[:ROUNDS] for job in step.jobs}
    assert len(starts) > ROUNDS
    for tick in starts:
        chosen, busy = [], []
        for step in steps:
            for job in step.jobs:
                if job.begun == tick:
                    chosen.append(job.client)
                elif job.begun < tick < step.ended:
                    busy.append(job.client)
        left = np.setdiff1d(np.arange(8), [*chosen, *busy])
        assert ticks[chosen].max() < ticks[left].min()
    updates = played.values["clients/updates"][ROUNDS - 1]
    counted = np.concatenate([step.cohort for step in steps[:ROUNDS]])
    assert updates.tolist() == np.bincount(counted, minlength=8).tolist()
    assert 0 in updates
