"""``hpcfl bench`` plays the real rounds and reports what they were."""

import pytest
import tiny

from hpcfl.commands import bench
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config


@pytest.mark.parametrize(
    ("every", "rounds", "numbers"),
    [(1, 2, [1, 2, 3]), (5, 2, [1, 2, 3, 5]), (90, 1, [1, 2])],
)
def test_scoring_is_timed_where_the_run_scores(every, rounds, numbers):
    experiment = config.parse(
        tiny.table("fedavg", rounds=50, evaluation={"every": every})
    )
    assert bench._round_numbers(experiment, rounds) == numbers


def test_the_report_counts_samples_and_lanes_and_projects_the_run():
    counts = [
        [8, 0, 0, 0],
        [4, 0, 0, 0],
    ]  # batches of 4: two steps and one, side by side
    experiment = config.parse(
        tiny.table("fedavg", counts, rounds=1000, training={"batch_size": 4})
    )
    report = bench.measure(experiment, 3, OneProcess())
    assert len(report.rounds) == 3 and report.warm_up > 0 and report.scoring_measured
    assert report.samples_per_second == pytest.approx(3 * 12 / sum(report.rounds))
    assert 0 < report.share_of_peak < 1 and report.memory_mb[0] > 10
    assert report.projected_seconds == pytest.approx(
        1000 * report.seconds_per_round, rel=1
    )
    assert (report.lane_occupancy, report.lanes_per_step) == (1, 3 / 2)
    assert "lane-steps          100 % did work, 1.5 lanes a step" in report.text()
