"""A short campaign with three faults. ``campaign.py`` runs all kinds at many moments."""

import campaign
import pytest
from job import MPIEXEC

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SORTS = ["kill -9 at an operation", "truncated file", "SIGTERM once"]


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python")
def test_a_run_is_correct_after_each_sort_of_fault(zygote):
    seeds = (f"short/{number}" for number in range(len(SORTS)))
    with campaign.stage(zygote, ["ditto"], SORTS, ranks=2, faults=1) as on:
        events = campaign.run(on, seeds, len(SORTS), [])
    assert {event.kind for event in events} == set(SORTS)
    assert [event for event in events if event.wrong] == []
