"""The campaign in short: one fault of every kind that is possible here, in one run."""

import campaign
import faults


def test_one_fault_of_every_kind():
    found = campaign.run(["fedavg"], len(faults.ALL) - 1, rounds=60, seed=1)
    assert len(found.events) >= len(faults.ALL) - 1
    assert found.wrong == [] and [event for event in found.events if event.wrong] == []
    assert {event.fault for event in found.events} >= {"kill -9 of a rank", "SIGTERM", "SIGSTOP of a rank"}
