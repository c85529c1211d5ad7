"""The campaign in short: one fault of every kind that is possible here, each in a run
of its own.
"""

import campaign
import pytest
from job import MPIEXEC

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python")
@pytest.mark.timeout(1800)
def test_one_fault_of_every_kind():
    with campaign.stage(["fedavg", "ditto"], ranks=3, faults=1) as on:
        events = campaign.run(
            on,
            (f"short/{number}" for number in range(len(on.kinds))),
            len(on.kinds),
            [],
        )
    assert {event.kind for event in events} == set(on.kinds)
    assert [event for event in events if event.wrong] == []
