"""The campaign in short: a fault of each sort, each in a run of its own. All kinds, at
many moments, are played by ``campaign.py``.
"""

import campaign
import pytest
from job import MPIEXEC

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SORTS = [
    "kill -9 at an operation",
    "kill -9 of mpiexec",
    "no space at an operation",
    "SIGTERM once",
    "two starts at once",
    "another configuration",
    "truncated file",
    "files of another run",
    "failure in the preflight",
    "another configuration on a rank",
    "rank leaves before the run",
]


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python")
def test_a_fault_of_each_sort():
    seeds = (f"short/{number}" for number in range(len(SORTS)))
    with campaign.stage(["ditto"], SORTS, ranks=3, faults=1) as on:
        events = campaign.run(on, seeds, len(SORTS), [])
    assert {event.kind for event in events} == set(SORTS)
    assert [event for event in events if event.wrong] == []
