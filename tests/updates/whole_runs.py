"""Runs with changed updates, and refused configurations."""

from functools import partial

import tiny
from in_threads import on_ranks
from playing import play, play_on, prepare_alone
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess

UNIFORM = {"name": "fedavg", "weights": "uniform"}
PART = {"fraction": 0.6}


def play_alone(folder, method=UNIFORM, **sections):
    return play(folder, method, **sections)


def is_the_same_elsewhere(folder, table):
    """Return whether a run has the same digest on five ranks, and on two that continue
    on three, and the run on one rank.
    """
    alone = play_on(OneProcess(), folder / "alone", table)
    begun = {**table, "rounds": table["rounds"] - 1}
    digests = set()
    for place, size, part in (("5", 5, table), ("2", 2, begun), ("2", 3, table)):
        work = partial(play_on, folder=folder / place, table=part)
        digest = on_ranks(size, work).digest
        if part is table:
            digests.add(digest)
    return digests == {alone.digest}, alone


def refuse(words, method=UNIFORM, counts=tiny.COUNTS, **sections):
    """Expect one error line with these words before any round."""
    table = tiny.table(method, counts, **sections)
    with expect_refusal(words):
        prepare_alone(table)
