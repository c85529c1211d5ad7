"""Data of all clients before round 1."""

import pytest

from hpcfl.experiment import config
from hpcfl.simulation.prepared_data import prepare_data


@pytest.mark.parametrize("redraw", [False, True])
def test_each_partition_has_samples_of_its_own_if_asked(redraw):
    datasets = []
    for seed in (1, 2):
        experiment = config.parse(
            {
                "data": {"samples": 200, "redraw": redraw},
                "partition": {"scheme": "iid", "clients": 2, "seed": seed},
                "method": {"name": "fedavg"},
            }
        )
        datasets.append(prepare_data(experiment, experiment.method).dataset)
    assert datasets[0].x.equal(datasets[1].x) is not redraw
