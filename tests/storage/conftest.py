"""Ranks that are threads of this process."""

import in_threads
import pytest

from hpcfl.communication.communicator import OneProcess


@pytest.fixture
def on_ranks():
    """Return ``on_ranks(size, work)``, which returns the results of every rank; an
    exception counts as a result.
    """

    def run(size, work):
        results = [None] * size

        def guarded(rank):
            try:
                results[rank.rank] = work(rank)
            except Exception as error:
                results[rank.rank] = error

        in_threads.on_ranks(size, guarded)
        return results

    return run


@pytest.fixture
def alone():
    return OneProcess()
