"""The campaign in short: one fault of every kind that is possible here, in one run."""

import campaign
import faults
from job import Job


def test_one_fault_of_every_kind():
    found = campaign.run(["fedavg"], len(faults.ALL) - 1, rounds=60, seed=1)
    assert len(found.events) >= len(faults.ALL) - 1
    assert found.wrong == [] and [event for event in found.events if event.wrong] == []
    assert {event.fault for event in found.events} >= {"kill -9 of a rank", "SIGTERM", "SIGSTOP of a rank"}


def test_a_vanished_folder_ends_the_job(tmp_path):
    """Not a fault that a run can survive, but one that it must not hang or carry on after."""
    file = tmp_path / "e.toml"
    file.write_text(campaign.EXPERIMENT.format(method="fedavg", rounds=100_000, hang_after=campaign.HANG_AFTER))
    job = Job(file, tmp_path / "out", 2)
    assert job.wait_for_rounds(6), job.said()
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert job.end(campaign.GRACE) == 1
    assert "No such file or directory" in job.said()
    job.folder = tmp_path / "elsewhere"
    assert job.manifests()
